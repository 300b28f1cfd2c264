"""Runs of rows that are attended to together, and the keys and values that they read.

What does not depend on the layer is made once a step: indices, masks, and every layer's view of its
K/V.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.engine.native.attending import Scoring, Steady, additive, attend, fused
from services.engine.native.pages import PAGE, Extent, Memory, Places, pages_of

_FUSED_ROWS, _FUSED_KEYS = 8, 640
"""For one session of up to so many rows and keys the fused kernel is the fast one."""


class Rows(Protocol):
    """A segment's place in the packed row, and what its rows see."""

    row: int
    count: int
    past: int

    @property
    def chained(self) -> bool:
        """Whether a place in the cache is a position in the text."""

    def first_seen(self, row: int, window: int) -> int:
        """The first key that any of the rows from `row` on may see in a sliding window."""

    def visible(self, window: int | None) -> Tensor:
        """Bool [count, past + count]."""

    def reach(self, key: Tensor, value: Tensor) -> Memory:
        """The memory, with room for these rows."""


class TreeRows(Rows, Protocol):
    """Rows that may be those of a tree, in a batch-invariant step."""

    def ways(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """For each way to a leaf: rows that no way before had, and places of all its tokens.

        The rows are the last ones of the way.
        """


@dataclass(frozen=True, slots=True)
class Run:
    """Some rows of a piece, and the pages that they read."""

    piece: Rows
    extent: Extent
    own: Sequence[int]
    """The rows, in the piece."""
    first: int
    """The first of the pages, counted from the beginning of the text."""
    pages: Sequence[int]
    end: int
    """Keys from the beginning of the text."""
    way: Places | None = None
    """Of a way through a tree, where in the extent each of its tokens from that page on lies."""

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.own)

    @property
    def chained(self) -> bool:
        """Whether the rows are the last of the keys, in order."""
        return self.piece.chained or self.way is not None

    def singly(self) -> Iterator[Run]:
        """A run for each row, of what it may read."""
        for place, row in enumerate(self.own):
            end = self.end - self.rows + place + 1 if self.chained else self.end
            pages = self.pages[: pages_of(end) - self.first]
            yield replace(self, own=(row,), pages=pages, end=end)


class Group:
    """Runs that are attended to together."""

    def __init__(
        self,
        runs: Sequence[Run],
        window: int | None,
        like: Tensor,
        steady: Steady | None = None,
    ) -> None:
        """`like`: queries [total, heads, d] of the whole step."""
        total, self._heads, self._width = like.shape
        self._runs, self._extent, self._window = runs, runs[0].extent, window
        self._kv_heads = self._extent.keys.shape[1]
        self._groups = self._heads // self._kv_heads
        self._count = len(runs)
        self._steady = steady
        least = 1 if steady is None else -(-steady.rows // self._groups)
        self._rows = max(least, *(run.rows for run in runs))
        self._keys = PAGE * max(len(run.pages) for run in runs)
        taken = [run.piece.row + row for run in runs for row in self._padded(run)]
        self.rows = np.asarray(taken)
        """Of the packed row, those read; padding repeats a run's last one."""
        self.own = np.concatenate(
            [place * self._rows + np.arange(run.rows) for place, run in enumerate(runs)]
        )
        """Which of them are no padding."""
        whole = taken == list(range(total))
        self._index = None if whole else torch.from_numpy(self.rows).to(like.device)
        self._by_token = runs[0].way is not None
        self._view = self._consecutive()
        self._mask: Tensor | None
        if self._view is None:
            self._pages = self._token_index(like) if self._by_token else self._page_index(like)
            self._mask = self._per_head(self._visible(), like)
        else:
            self._mask = self._mask_of_view(self._view, like)

    def attend(self, layer: int, rows: Tensor, scoring: Scoring) -> Tensor:
        """Queries [total, heads, d] of the whole step; returns [rows, heads * d_v]."""
        if self._index is not None:
            rows = rows.index_select(0, self._index)
        if self._rows > 1:
            apart = rows.view(self._count, self._rows, self._kv_heads, self._groups, self._width)
            rows = apart.permute(0, 2, 3, 1, 4)
        query = rows.reshape(-1, self._groups * self._rows, self._width)
        attended = self._attended(layer, query, scoring)
        if self._rows > 1:
            parts = attended.view(self._count, self._kv_heads, self._groups, self._rows, -1)
            attended = parts.permute(0, 3, 1, 2, 4)
        return attended.reshape(self._count * self._rows, -1)

    def _attended(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        if self._view is None:
            keys, values = self._gathered(layer)
        else:
            keys, values = self._seen[0][layer], self._seen[1][layer]
            if scoring.softcap is None and self._steady is None:
                mask = None if self._mask is None else self._mask[None]
                return fused(query[None], keys, values, mask, scoring)
            keys, values = keys[0], values[0]
        return attend(query, keys, values, self._mask, scoring, self._steady)

    @cached_property
    def _seen(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of every layer what a view sees of its K, [1, kv_heads, keys, d], and of its V."""
        keys, values = self._extent.whole
        return keys[:, None, :, self._view].unbind(), values[:, None, :, self._view].unbind()

    def _gathered(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's K, [parts * kv_heads, keys, d], and V."""
        if self._extent.both is not None:
            keys, values = self._taken(self._units[0][layer], 2).unbind()
            return keys, values
        keys, values = (self._taken(stored[layer], 1)[0] for stored in self._units)
        return keys, values

    def _taken(self, units: Tensor, kinds: int) -> Tensor:
        """[kinds, parts * kv_heads, keys, d] of a layer's pages or tokens [units, ...]."""
        taken = units.index_select(0, self._pages)
        return taken.view(kinds, self._count * self._kv_heads, self._keys, -1)

    @cached_property
    def _units(self) -> list[tuple[Tensor, ...]]:
        """Of every layer all pages or tokens of K and V as one, or of K and of V."""
        extent = self._extent
        stored = (extent.keys, extent.values) if extent.both is None else (extent.both,)
        deep = 3 if self._by_token else 2
        return [each.flatten(deep + 1).flatten(1, deep).unbind() for each in stored]

    # --- what is the same in all layers ------------------------------------------

    def _padded(self, run: Run) -> Iterator[int]:
        yield from run.own
        for _ in range(self._rows - run.rows):
            yield run.own[-1]

    def _consecutive(self) -> slice | None:
        """The keys of a lone run, if they lie in one piece: of a short one, or all its pages."""
        run = self._runs[0]
        start = run.pages[0]
        short = self._rows <= _FUSED_ROWS and self._keys <= _FUSED_KEYS
        if self._count > 1 or self._by_token or not (short or self._steady):
            return None
        if list(run.pages) != list(range(start, start + len(run.pages))):
            return None
        keys = self._keys if self._steady else run.end - run.first * PAGE
        return slice(start * PAGE, start * PAGE + keys)

    def _page_index(self, like: Tensor) -> Tensor:
        """Of each part and K/V head its pages, counted over heads and pages of an extent."""
        table = np.zeros((self._count, 1, self._keys // PAGE), np.int64)
        for line, run in zip(table, self._runs, strict=True):
            line[:] = run.pages[0]
            line[0, : len(run.pages)] = run.pages
        return self._over_heads(table, self._extent.count, like)

    def _token_index(self, like: Tensor) -> Tensor:
        """The same by tokens, for ways through trees."""
        table = np.zeros((self._count, 1, self._keys), np.int64)
        for line, run in zip(table, self._runs, strict=True):
            assert run.way is not None
            line[:] = run.way[0]
            line[0, : run.end - run.first * PAGE] = run.way[: run.end - run.first * PAGE]
        return self._over_heads(table, self._extent.count * PAGE, like)

    def _over_heads(self, table: Places, of_a_head: int, like: Tensor) -> Tensor:
        """What a table [parts, 1, n] names in each head; of V behind K, where these are one."""
        kinds = 1 if self._extent.both is None else 2
        heads = np.arange(kinds * self._kv_heads).reshape(kinds, 1, -1, 1) * of_a_head
        return torch.from_numpy((table + heads).reshape(-1)).to(like.device)

    def _mask_of_view(self, view: slice, like: Tensor) -> Tensor | None:
        """None where one row sees all there is."""
        one = self._rows == 1 and self._runs[0].piece.chained and self._window is None
        if one and self._steady is None:
            return None
        return self._per_head(self._visible()[:, :, : view.stop - view.start], like)

    def _per_head(self, visible: Tensor, like: Tensor) -> Tensor:
        """Additive, [parts * kv_heads, groups * rows, keys]."""
        mask = additive(visible, like)[:, None, None]
        wide = mask.expand(-1, -1, self._groups, -1, -1)
        wide = wide.reshape(self._count, 1, -1, visible.shape[-1])
        every = wide.expand(-1, self._kv_heads, -1, -1)
        return every[0] if self._count == 1 else every.flatten(0, 1)

    def _visible(self) -> Tensor:
        """Bool [parts, rows, keys]; padding sees what a run's last row sees."""
        own = torch.tensor([list(self._padded(run)) for run in self._runs])
        before = torch.tensor([run.end - run.rows for run in self._runs])[:, None]
        last = torch.tensor([run.rows - 1 for run in self._runs])[:, None]
        rows = (before + torch.arange(self._rows).minimum(last))[:, :, None]
        first = torch.tensor([run.first * PAGE for run in self._runs])
        keys = (first[:, None] + torch.arange(self._keys))[:, None]
        visible = keys <= rows
        if self._window is not None:
            visible &= keys > rows - self._window
        for place, run in enumerate(self._runs):
            if not run.chained:
                seen = run.piece.visible(self._window)[own[place], run.first * PAGE :]
                visible[place, :, : seen.shape[1]] = seen
                visible[place, :, seen.shape[1] :] = False
        return visible
