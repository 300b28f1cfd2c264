"""The target's predictions at the rows of a block, for drafters.

A verification computes the target's distribution at every node of a draft, rejected ones
included. A row holds the node's token and the likeliest ones behind it, and predicts what
follows that token when it comes again (Token Recycling, Luo et al., 2408.08696).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

WIDTH = 8
"""Likeliest tokens of a row, at most."""
MOST_ROWS = 64
"""Most rows in one verdict."""
_WORD = 4


def pack(contexts: Sequence[int], likeliest: Sequence[Sequence[int]]) -> bytes:
    """Pack rows: for each its token, and the likeliest ones behind it."""
    words = [word for row in zip(contexts, likeliest, strict=True) for word in (row[0], *row[1])]
    return struct.pack(f"<{len(words)}I", *words)


def fits(rows: bytes, width: int) -> bool:
    """Whether these are whole rows of `width` tokens, and no more than a block may have."""
    size = _WORD * (1 + width)
    return 0 < width <= WIDTH and len(rows) % size == 0 and len(rows) <= MOST_ROWS * size


def unpack(rows: bytes, width: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """For each row its token and the likeliest ones behind it; empty if malformed."""
    if not fits(rows, width):
        return
    for context, *likeliest in struct.iter_unpack(f"<{1 + width}I", rows):
        yield context, tuple(likeliest)
