"""Which way to attend, so that a row's bits do not depend on its company: measured on this CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.native.attending import Scoring, Steady, attend

WAYS = (
    *(Steady(1, None), Steady(4, None), Steady(4, 256), Steady(4, 128), Steady(8, 64)),
    *(Steady(4, 256, 64), Steady(4, 128, 64), Steady(8, 64, 64)),
    Steady(1, 64, None, 12),
)
"""Ways to attend, the cheapest first."""
_TEXTS = (300, 700, 200, 1000, 100, 64, 5)
"""Keys that a measured row sees; first those at which most ways fail."""


@cache
def steady(dtype: torch.dtype, head_dim: int, groups: int) -> Steady:
    """The cheapest way to attend in which no row depends on others or on how far keys are padded.

    `groups`: heads that share a key. Raises StartError where this CPU has none.
    """
    for way in WAYS:
        if all(holds(way, dtype, head_dim, groups, own) for own in _TEXTS):
            return way
    kind = str(dtype).removeprefix("torch.")
    raise StartError(
        f"batch-invariant: attention in {kind} with heads of {head_dim}, {groups} to a key, "
        "depends on the rows beside a row on this CPU"
    )


def holds(way: Steady, dtype: torch.dtype, head_dim: int, groups: int, own: int) -> bool:
    """Whether rows that see `own` keys have the same bits in all company that is tried."""
    drawn = torch.Generator().manual_seed(own)
    most, longest = 80, -(-own // 64) * 64 + 640
    query = torch.randn(2, most * groups, head_dim, generator=drawn).to(dtype)
    keys, values = (torch.randn(2, longest, head_dim, generator=drawn).to(dtype) for _ in range(2))
    mask = torch.zeros(1, 1, longest, dtype=dtype)
    mask[:, :, own:] = -torch.inf
    least = -(-way.rows // groups)

    def attended(first: int, rows: int, padded: int, parts: int) -> Tensor:
        rows = max(rows, least) * groups
        mine = query[:, first : first + rows].repeat(parts, 1, 1)
        # Of one part keys and values lie where they are, as those of a lone session do.
        those, theirs = keys[:, :padded], values[:, :padded]
        if parts > 1:
            those, theirs = those.repeat(parts, 1, 1), theirs.repeat(parts, 1, 1)
        seen = mask[:, :, :padded].expand(2 * parts, rows, -1)
        return attend(mine, those, theirs, seen, Scoring(), way)[:2]

    expected = attended(0, most, longest, 1)
    return all(
        torch.equal(out, expected[:, company[0] : company[0] + out.shape[1]])
        for company in _companies(own, longest)
        for out in (attended(*company),)
    )


def _companies(own: int, longest: int) -> Iterator[tuple[int, int, int, int]]:
    """The first row, how many there are, padded keys and parts."""
    least = -(-own // 64) * 64
    lengths = (least, least + 64, least + 128, least + 320, longest)
    yield from product((0, 7), (1, 2, 3, 5, 8, 16), lengths, (1, 3))
    # Long runs go alone, and are what takes time.
    yield from product((7,), (64,), (least, longest), (1,))
