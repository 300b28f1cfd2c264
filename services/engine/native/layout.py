"""One packed step: which rows of the batch belong to which session, and what they see.

Everything that is the same for all layers (positions, masks) is worked out here
once a step; the attention of each layer only looks it up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from services.engine.budgeted import check_apart, place
from services.engine.native.attending import Scoring
from services.engine.native.kv import PagedCache
from services.engine.native.pages import Memory
from services.engine.native.paging import Paging
from services.engine.native.steadiness import steady
from services.engine.port import Segment


class Piece:
    """One segment's place in the packed row, and what its rows see."""

    def __init__(self, segment: Segment, first_row: int, skipped: frozenset[int]) -> None:
        """Check the segment; raises ValueError when its cache cannot take it."""
        placed = place(segment, PagedCache)
        placed.cache.check_layers(skipped)
        self.row, self.count = first_row, placed.count
        self.cache, self.past, self.base = placed.cache, placed.past, placed.base
        self.parents = placed.parents
        """Of all nodes from `base` on; None when they form a chain."""
        self.logits_from = segment.logits_from
        self.places = placed.places
        """Position of every token from `base` on."""
        self._placed = placed

    @property
    def positions(self) -> list[int]:
        """Position of each token in its session's text: what lies before it on its path."""
        return self.places[-self.count :]

    @property
    def chained(self) -> bool:
        """Whether every place in the cache is a position in the text."""
        return self.parents is None

    def first_seen(self, row: int, window: int) -> int:
        """The first key that any of the rows from `row` on may see in a sliding window."""
        start = self.past + row if self.parents is None else self.base
        return max(0, start + 1 - window)

    def ways(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Of a tree, for each way to a leaf: rows that no way before had; places of all its tokens.

        The rows are the last ones of the way.
        """
        had = set[int]()
        for way in self._placed.ways:
            fresh = [place for place in way if place >= self.past and place not in had]
            had.update(fresh)
            yield [place - self.past for place in fresh], [*range(self.base), *way]

    def reach(self, key: Tensor, value: Tensor) -> Memory:
        """The cache's memory, with room for these rows."""
        return self.cache.reach(self.past + self.count, key, value)

    def visible(self, window: int | None) -> Tensor:
        """Bool [n, past + n]: the past, ancestors and the token itself, within the window."""
        keys = torch.cat((torch.arange(self.base), torch.tensor(self.places)))[None, :]
        rows = keys[0, -self.count :, None]
        visible = keys <= rows
        if self.parents is not None:
            visible[:, self.base :] = _ancestors(self.parents)[-self.count :]
        return visible if window is None else visible & (keys > rows - window)


def _ancestors(parents: tuple[int, ...]) -> Tensor:
    """Bool [n, n]: row i sees column j when j is i or an ancestor of it."""
    seen = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, node] = True
    return seen


class Layout:
    """All segments of one forward, packed into one row of tokens."""

    def __init__(
        self,
        segments: Sequence[Segment],
        skipped: frozenset[int] = frozenset(),
        *,
        invariant: bool = False,
    ) -> None:
        """Check and place the segments; raises ValueError before anything is changed.

        `skipped`: layers whose attention is left out, and which so keep no K/V. `invariant`: the
        bits of a row must not depend on others.
        """
        check_apart(segments)
        self.skipped = skipped
        starts = accumulate((len(segment.token_ids) for segment in segments), initial=0)
        self.pieces = [Piece(*pair, skipped) for pair in zip(segments, starts, strict=False)]
        self.token_ids = [token for segment in segments for token in segment.token_ids]
        self.positions = [position for piece in self.pieces for position in piece.positions]
        self._invariant = invariant
        self._paging: Paging | None = None
        self._written = 0
        self.once: dict[int, Any] = {}
        """What layers work out once a step, by whom or by what of it is."""

    @property
    def logit_rows(self) -> list[int]:
        """Rows of the packed batch whose logits are wanted, in order."""
        return [
            row
            for piece in self.pieces
            for row in range(piece.row + piece.logits_from, piece.row + piece.count)
        ]

    @property
    def logit_counts(self) -> list[int]:
        """Wanted rows per segment."""
        return [piece.count - piece.logits_from for piece in self.pieces]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """Store a layer's K/V and attend to it; see `ragged_attention` for the shapes."""
        rows = query[0].transpose(0, 1)
        paging = self._paged(layer) or self._page(rows, scoring, key, value)
        paging.write(layer, key, value)
        return paging.attend(layer, rows, scoring).view(1, len(rows), rows.shape[1], -1)

    def attend_heads(self, layer: int, heads: Tensor, kv_heads: int, scoring: Scoring) -> Tensor:
        """The same of heads [total, heads, d], queries before K before V; returns [total, ...]."""
        rows, both = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads :].transpose(0, 1)
        paging = self._paged(layer) or self._page(rows, scoring, *both[None].chunk(2, 1))
        paging.write_both(layer, both)
        return paging.attend(layer, rows, scoring)

    def _paged(self, layer: int) -> Paging | None:
        """Where this layer's K/V goes; None for the first that asks."""
        if layer in self.skipped:
            raise RuntimeError(f"layer {layer} was to be skipped, and keeps K/V")
        self._written += 1
        return self._paging

    def _page(self, rows: Tensor, scoring: Scoring, key: Tensor, value: Tensor) -> Paging:
        """Take pages; for queries [total, heads, d], and key and value as in `attend`."""
        way = None
        if self._invariant:
            groups = rows.shape[1] // key.shape[1]
            way = steady(rows.dtype, rows.shape[-1], groups, scoring.scaling)
        self._paging = Paging(self.pieces, key, value, way)
        return self._paging

    def commit(self, layers: int | None = None) -> None:
        """Make the new K/V valid in every cache, once the forward has succeeded.

        RuntimeError unless each of `layers` that was not skipped kept its K/V once.
        """
        if layers is not None and self._written != layers - len(self.skipped):
            expected = layers - len(self.skipped)
            raise RuntimeError(f"{self._written} of {expected} layers kept K/V")
        for piece in self.pieces:
            piece.cache.commit(piece.count, piece.base, piece.parents, self.skipped)
