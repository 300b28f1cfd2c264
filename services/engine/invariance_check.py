"""The check at load of a batch-invariant model: equal bits in any company.

A random text goes through the model at once. Then come the same tokens in pieces, some beside
another text, after a rollback, and as one way through a tree. Every row must be the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.port import KVCache, Segment

Forward = Callable[[Sequence[Segment]], list[Tensor]]

_LENGTH = 80
_PIECES = (1, 1, 2, 1, 1, 3, 1, 5, 8, 17)
TOKENS = 4 * 2 * _LENGTH
"""K/V that the check needs, in tokens."""


def check(
    forward: Forward,
    new_cache: Callable[[int], KVCache],
    vocab_size: int,
    context: int,
    name: str,
) -> str:
    """A digest of the logits' bits; StartError where they differ between two companies.

    `context`: the longest text there may be. Workers that differ in the digest would write
    different texts.
    """
    drawn = torch.Generator().manual_seed(7)
    length = min(_LENGTH, context)
    text, other = torch.randint(0, vocab_size, (2, length), generator=drawn).tolist()
    (expected,) = forward([Segment(cache := new_cache(length), text)])
    cache.free()
    for place, row in _in_pieces(forward, new_cache, text, other):
        if not torch.equal(row, expected[place]):
            raise StartError(
                f"{name}: batch-invariant: its logits depend on the rows beside a row "
                f"(by {float((row - expected[place]).abs().max()):.1e}), so it cannot run so here"
            )
    return hashlib.sha256(expected.cpu().numpy().tobytes()).hexdigest()


def _in_pieces(
    forward: Forward,
    new_cache: Callable[[int], KVCache],
    text: Sequence[int],
    other: Sequence[int],
) -> Iterator[tuple[int, Tensor]]:
    """Places of the text, and their rows in company."""
    mine, beside = new_cache(2 * len(text)), new_cache(len(text))
    forward([Segment(mine, other[:3], logits_from=len(other[:3]))])
    mine.rollback(0)
    for size in _PIECES:
        start = mine.length
        if start + size >= len(text):
            break
        pieces = [Segment(mine, text[start : start + size])]
        if start % 2:
            pieces = [Segment(beside, other[start : start + 2]), *pieces]
        yield from enumerate(forward(pieces)[-1], start)
    start = mine.length
    # Two nodes at each depth; the text goes on behind the second one.
    nodes = [token for pair in zip(other[start:], text[start:], strict=True) for token in pair]
    parents = [node // 2 * 2 - 1 for node in range(len(nodes))]
    (rows,) = forward([Segment(mine, nodes, parents=parents)])
    yield from enumerate(rows[1::2], start)
    mine.free()
    beside.free()
