"""What single tokens stand for: bytes, or text that only a decoder knows.

Byte-level BPE (GPT-2) writes every token as bytes in a printable alphabet;
SentencePiece models with byte fallback have a token `<0xHH>` for each byte. In
both, one character may be spread over several tokens.
"""

from __future__ import annotations

import tokenizers

from services.contract.token_bytes import decoder_kinds, from_alphabet, from_byte_token


class Vocabulary:
    """The byte view of a tokenizer's tokens."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        decoder = tokenizer.decoder
        kinds = decoder_kinds(decoder.__getstate__()) if decoder is not None else []
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
            return from_alphabet(written)
        return from_byte_token(written) if self._fallback else None

    def _decodes_to_nothing(self, written: str) -> bool:
        token = self._tokenizer.token_to_id(written)
        return token is not None and self._tokenizer.decode([token]) == ""
