"""Which way to attend, so that a row's bits do not depend on its company: measured on this CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product, starmap
from typing import NamedTuple

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.native.attending import Scoring, Steady, attend
from services.engine.native.pages import PAGE

WAYS = (
    *(Steady(1, None), Steady(4, None), Steady(4, 256), Steady(4, 128), Steady(8, 64)),
    *(Steady(4, 256, 64), Steady(4, 128, 64), Steady(8, 64, 64)),
    Steady(1, 64, None, 12),
)
"""Ways to attend, the cheapest first."""
_TEXTS = (300, 700, 200, 1000, 100, 64, 5)
"""Keys that a measured row sees; first those at which most ways fail."""


@cache
def steady(dtype: torch.dtype, head_dim: int, groups: int, scaling: float | None = None) -> Steady:
    """The cheapest way to attend in which no row depends on others or on how far keys are padded.

    `groups`: heads that share a key. `scaling`: see `Scoring`; some kernels multiply a small
    product by it before and a large one behind, which shows where it is no power of two.
    Raises StartError where this CPU has none.
    """
    for way in WAYS:
        if all(holds(way, dtype, head_dim, groups, own, scaling) for own in _TEXTS):
            return way
    kind = str(dtype).removeprefix("torch.")
    raise StartError(
        f"batch-invariant: attention in {kind} with heads of {head_dim}, {groups} to a key, "
        "depends on the rows beside a row on this CPU"
    )


class _Company(NamedTuple):
    """What a row is attended to with: `rows` from `first` on, over the keys [start, end).

    `parts`: so many times, as if they were of several sessions.
    """

    first: int
    rows: int
    start: int
    end: int
    parts: int


def holds(
    way: Steady,
    dtype: torch.dtype,
    head_dim: int,
    groups: int,
    own: int,
    scaling: float | None = None,
) -> bool:
    """Whether rows that see `own` keys have the same bits in all company that is tried.

    So have those in a window that ends there, wherever the keys that are read begin.
    """
    drawn = torch.Generator().manual_seed(own)
    most, longest = 80, -(-own // 64) * 64 + 640
    query = torch.randn(2, most * groups, head_dim, generator=drawn).to(dtype)
    keys, values = (torch.randn(2, longest, head_dim, generator=drawn).to(dtype) for _ in range(2))
    least = -(-way.rows // groups)

    def attended(company: _Company, mask: Tensor) -> Tensor:
        first, _, start, end, parts = company
        rows = max(company.rows, least) * groups
        mine = query[:, first : first + rows].repeat(parts, 1, 1)
        # Of one part keys and values lie where they are, as those of a lone session do.
        those, theirs = keys[:, start:end], values[:, start:end]
        if parts > 1:
            those, theirs = those.repeat(parts, 1, 1), theirs.repeat(parts, 1, 1)
        seen = mask[:, :, start:end].expand(2 * parts, rows, -1)
        return attend(mine, those, theirs, seen, Scoring(scaling), way)[:2]

    def alike(unseen: int, companies: Iterable[_Company]) -> bool:
        mask = torch.zeros(1, 1, longest, dtype=dtype)
        mask[:, :, :unseen] = mask[:, :, own:] = -torch.inf
        expected = attended(_Company(0, most, 0, longest, 1), mask)
        return all(
            torch.equal(out, expected[:, company.first : company.first + out.shape[1]])
            for company in companies
            for out in (attended(company, mask),)
        )

    unseen = own // 3
    return alike(0, _companies(own, longest)) and alike(
        unseen, _in_windows(unseen, own, longest, way)
    )


def _companies(own: int, longest: int) -> Iterator[_Company]:
    """Of rows that see all keys up to `own`."""
    least = -(-own // 64) * 64
    lengths = (least, least + 64, least + 128, least + 320, longest)
    yield from starmap(_Company, product((0, 7), (1, 2, 3, 5, 8, 16), (0,), lengths, (1, 3)))
    # Long runs go alone, and are what takes time.
    yield from starmap(_Company, product((7,), (64,), (0,), (least, longest), (1,)))


def _in_windows(unseen: int, own: int, longest: int, way: Steady) -> Iterator[_Company]:
    """Of rows that see none of the first keys, read from where `paging` may begin."""
    part = PAGE if way.keys is None else way.keys
    starts = {0, min(part, unseen // part * part), unseen // part * part}
    ends = -(-own // 64) * 64, longest
    yield from starmap(_Company, product((0, 7), (1, 5, 16), sorted(starts), ends, (1,)))
