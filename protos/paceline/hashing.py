"""The rolling hash by which a server knows the text that a reader has."""

from __future__ import annotations

from collections.abc import Iterable

EMPTY_HASH = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


def extend_hash(prefix_hash: int, token_ids: Iterable[int]) -> int:
    """The hash of a text that goes on with `token_ids`; `EMPTY_HASH` is that of no text.

    64-bit FNV-1a over token ids plus one, each taken whole (docs/wire.md). It tells texts apart
    that differ by accident; who makes up tokens deceives nobody but itself.
    """
    for token in token_ids:
        prefix_hash = ((prefix_hash ^ (token + 1)) * _PRIME) & _MASK
    return prefix_hash
