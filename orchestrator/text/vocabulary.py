"""What single tokens stand for: bytes, or text that only a decoder knows.

Byte-level BPE (GPT-2) writes every token as bytes in a printable alphabet;
SentencePiece models with byte fallback have a token `<0xHH>` for each byte. In
both, one character may be spread over several tokens.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (Radford et al. 2019, `encoder.py`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = (byte for byte in range(256) if byte not in set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(rest)}


_ALPHABET = byte_alphabet()


class Vocabulary:
    """The byte view of a tokenizer's tokens."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = kinds == ["ByteLevel"]
        self._fallback = "ByteFallback" in kinds
        self._bytes: dict[int, bytes | None] = {}
        self.strips_first_space = self._fallback and self._decodes_to_nothing("<0x20>")

    @property
    def has_bytes(self) -> bool:
        """Every token that may hold part of a character is known by its bytes."""
        return self._byte_level or self._fallback

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes of a token; none for an unknown id; None when it is not made of bytes."""
        if token not in self._bytes:
            self._bytes[token] = self._look_up(token)
        return self._bytes[token]

    def anchor(self) -> int | None:
        """Some token with plain text, to stand before another that is not the first."""
        for token in range(self._tokenizer.get_vocab_size()):
            if self.token_bytes(token) is None and self._tokenizer.decode([token]).isalnum():
                return token
        return None

    def _look_up(self, token: int) -> bytes | None:
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return b""
        if self._byte_level:
            return _from_alphabet(written)
        match = _BYTE_TOKEN.fullmatch(written) if self._fallback else None
        return bytes.fromhex(match[1]) if match else None

    def _decodes_to_nothing(self, written: str) -> bool:
        token = self._tokenizer.token_to_id(written)
        return token is not None and self._tokenizer.decode([token]) == ""


def _from_alphabet(written: str) -> bytes:
    try:
        return bytes(_ALPHABET[char] for char in written)
    except KeyError:
        # An added token is written as it is.
        return written.encode()


def _decoder_kinds(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """The decoder's steps by type, in order."""
    if tokenizer.decoder is None:
        return []
    return _kinds(json.loads(tokenizer.decoder.__getstate__()))


def _kinds(decoder: dict[str, Any]) -> list[str]:
    if decoder["type"] != "Sequence":
        return [decoder["type"]]
    return [kind for step in decoder["decoders"] for kind in _kinds(step)]
