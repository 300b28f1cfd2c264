"""What the tokens of a vocabulary are written with, where each stands for some bytes."""

from __future__ import annotations

import json
import re
from typing import Any


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (Radford et al. 2019, `encoder.py`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = (byte for byte in range(256) if byte not in set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(rest)}


ALPHABET = byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def from_alphabet(written: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary."""
    try:
        return bytes(ALPHABET[char] for char in written)
    except KeyError:
        # An added token is written as it is.
        return written.encode()


def from_byte_token(written: str) -> bytes | None:
    """The byte of a token such as `<0x0A>`; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(written)
    return bytes.fromhex(match[1]) if match else None


def decoder_kinds(decoder: bytes) -> list[str]:
    """The steps by type, in order, of a decoder of `tokenizers` as it is written down."""
    return _kinds(json.loads(decoder))


def _kinds(decoder: dict[str, Any]) -> list[str]:
    if decoder["type"] != "Sequence":
        return [decoder["type"]]
    return [kind for step in decoder["decoders"] for kind in _kinds(step)]
