"""One forward's K/V: where its rows are written, and what its rows read. See `pages`.

Made once a step, for all layers. Rows of many sessions with texts of about the same
length are attended to in one go, padded to the longest; a long run of rows is cut, so that
its scores stay in the processor's caches and each part reads only what comes before it.

In a batch-invariant step the row of a tree reads the text on its path in one piece, as the row
of a chain does: each way to a leaf is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from services.engine.native.attending import Scoring, Steady, additive, attend, fused
from services.engine.native.pages import PAGE, Extent, Memory, Places, pages_of

SHORT = 16
"""Rows of a session that are padded and attended to with those of others, at most."""
_FEW = 4
_LONG = 64
"""Rows that a long run is cut to, at least."""
_SCORES_BYTES = 1 << 20
"""Of a cut run: what fits the processor's caches."""
_FUSED_ROWS, _FUSED_KEYS = 8, 640
"""For one session of up to so many rows and keys the fused kernel is the fast one."""
_GROUP_BYTES = 1 << 20
"""What is read in the time that a group takes however little it reads."""


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
class _Run:
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

    def singly(self) -> Iterator[_Run]:
        """A run for each row, of what it may read."""
        for place, row in enumerate(self.own):
            end = self.end - self.rows + place + 1 if self.chained else self.end
            pages = self.pages[: pages_of(end) - self.first]
            yield replace(self, own=(row,), pages=pages, end=end)


class Group:
    """Runs that are attended to together."""

    def __init__(
        self,
        runs: Sequence[_Run],
        window: int | None,
        like: Tensor,
        steady: Steady | None = None,
    ) -> None:
        """`like`: a query [1, heads, total, d] of the whole step."""
        _, self._heads, total, _ = like.shape
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
        """Query [total, heads, d] of the whole step; returns [rows, heads, d_v]."""
        if self._index is not None:
            rows = rows.index_select(0, self._index)
        shape = (self._count, self._rows, self._kv_heads, self._groups, rows.shape[-1])
        query = rows.view(shape).permute(0, 2, 3, 1, 4)
        query = query.reshape(-1, self._groups * self._rows, rows.shape[-1])
        attended = self._attended(layer, query, scoring)
        parts = attended.view(self._count, self._kv_heads, self._groups, self._rows, -1)
        return parts.permute(0, 3, 1, 2, 4).reshape(len(rows), self._heads, -1)

    def _attended(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        stored = (self._extent.keys[layer], self._extent.values[layer])
        if self._view is not None:
            keys, values = (t.flatten(1, 2)[:, self._view] for t in stored)
            if scoring.softcap is None and self._steady is None:
                return fused(query, keys, values, self._mask, scoring)
        else:
            keys, values = (self._gathered(t) for t in stored)
        return attend(query, keys, values, self._mask, scoring, self._steady)

    def _gathered(self, stored: Tensor) -> Tensor:
        """[parts * kv_heads, keys, d] of one layer's [kv_heads, pages, PAGE, d]."""
        units = stored.flatten(0, 2) if self._by_token else stored.flatten(2).flatten(0, 1)
        pages = units.index_select(0, self._pages)
        return pages.view(self._count * self._kv_heads, self._keys, stored.shape[-1])

    # --- what is the same in all layers ------------------------------------------

    def _padded(self, run: _Run) -> Iterator[int]:
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
        heads = np.arange(self._kv_heads)[:, None] * self._extent.count
        return torch.from_numpy((table + heads).reshape(-1)).to(like.device)

    def _token_index(self, like: Tensor) -> Tensor:
        """The same by tokens, for ways through trees."""
        table = np.zeros((self._count, 1, self._keys), np.int64)
        for line, run in zip(table, self._runs, strict=True):
            assert run.way is not None
            line[:] = run.way[0]
            line[0, : run.end - run.first * PAGE] = run.way[: run.end - run.first * PAGE]
        heads = np.arange(self._kv_heads)[:, None] * (self._extent.count * PAGE)
        return torch.from_numpy((table + heads).reshape(-1)).to(like.device)

    def _mask_of_view(self, view: slice, like: Tensor) -> Tensor | None:
        """None where one row sees all there is."""
        one = self._rows == 1 and self._runs[0].piece.chained and self._window is None
        if one and self._steady is None:
            return None
        return self._per_head(self._visible()[:, :, : view.stop - view.start], like)

    def _per_head(self, visible: Tensor, like: Tensor) -> Tensor:
        """Additive, [parts * kv_heads (1 for one part), groups * rows, keys]."""
        kv_heads = self._kv_heads if self._count > 1 else 1
        mask = additive(visible, like)[:, None, None]
        wide = mask.expand(-1, kv_heads, self._groups, -1, -1)
        return wide.reshape(-1, self._groups * self._rows, visible.shape[-1])

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


class Paging:
    """The writes and reads of one step."""

    def __init__(
        self, pieces: Sequence[Rows], key: Tensor, value: Tensor, steady: Steady | None = None
    ) -> None:
        """Take the pages; key and value [1, kv_heads, total, d] are shaped as every layer's.

        `steady`: how to attend, so that a row does not depend on others; the pieces are
        `TreeRows` then.
        """
        self._steady = steady
        self._pieces = list(pieces)
        self._memories = [piece.reach(key, value) for piece in pieces]
        self._writes = list(self._make_writes(key))
        self._groups: dict[int | None, tuple[list[Group], Tensor | None]] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store one layer's new K and V."""
        for extent, rows, places in self._writes:
            for stored, new in ((extent.keys, key), (extent.values, value)):
                own = new[0] if rows is None else new[0].index_select(1, rows)
                flat = stored[layer].view(-1, stored.shape[-1])
                flat.index_copy_(0, places, own.reshape(-1, own.shape[-1]))

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """Query [1, heads, total, d]; returns [1, total, heads, d_v]."""
        window = scoring.window
        if window not in self._groups:
            self._groups[window] = self._grouped(window, query)
        groups, back = self._groups[window]
        rows = query[0].transpose(0, 1)
        parts = [group.attend(layer, rows, scoring) for group in groups]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return (whole if back is None else whole.index_select(0, back))[None]

    def _extents(self) -> dict[int, list[int]]:
        """Which pieces lie in which extent."""
        found: dict[int, list[int]] = {}
        for place, memory in enumerate(self._memories):
            found.setdefault(id(memory.extent), []).append(place)
        return found

    def _make_writes(self, key: Tensor) -> Iterator[tuple[Extent, Tensor | None, Tensor]]:
        """Per extent: which of the step's rows are written, None for all, and where to."""
        extents = self._extents()
        for members in extents.values():
            extent = self._memories[members[0]].extent
            assert extent is not None
            own = [(self._pieces[place], self._memories[place]) for place in members]
            tokens = np.concatenate(
                [memory.places(piece.past, piece.past + piece.count) for piece, memory in own]
            )
            heads = np.arange(key.shape[1])[:, None] * (extent.count * PAGE)
            places = torch.from_numpy((heads + tokens).reshape(-1)).to(key.device)
            taken = [np.arange(piece.row, piece.row + piece.count) for piece, _ in own]
            rows = torch.from_numpy(np.concatenate(taken)).to(key.device)
            yield extent, None if len(extents) == 1 else rows, places

    def _runs(
        self, piece: Rows, memory: Memory, window: int | None, query: Tensor
    ) -> Iterator[_Run]:
        # Keys are weighed in parts, which have to begin at the same ones for every row.
        steady = self._steady
        part = PAGE if steady is None or steady.keys is None else steady.keys
        if steady is not None and not piece.chained:
            return _ways(cast("TreeRows", piece), memory, window, part // PAGE)
        row_bytes = query.shape[1] * query.element_size()
        return _runs(piece, memory, window, row_bytes, query.device, part // PAGE)

    def _grouped(self, window: int | None, query: Tensor) -> tuple[list[Group], Tensor | None]:
        """All groups, and which row of what they return is which one of the step's."""
        total = query.shape[2]
        runs = [
            run
            for piece, memory in zip(self._pieces, self._memories, strict=True)
            for run in self._runs(piece, memory, window, query)
        ]
        groups = [
            Group(alike, window, query, self._steady)
            for _, members in groupby(sorted(runs, key=_extent), _extent)
            for alike in _grouped_alike(list(members))
        ]
        if len(groups) == 1 and groups[0].rows.tolist() == list(range(total)):
            return groups, None
        back, before = np.empty(total, np.int64), 0
        for group in groups:
            back[group.rows[group.own]] = before + group.own
            before += len(group.rows)
        return groups, torch.from_numpy(back).to(query.device)


def _extent(run: _Run) -> tuple[int, bool]:
    """Runs that differ in this lie in different tensors, or are read in different units."""
    return id(run.extent), run.way is not None


def _likeness(run: _Run) -> int:
    """Runs of one extent that differ in this are not attended to together: about how many rows."""
    rows = run.rows
    return 0 if rows == 1 else 1 if rows <= _FEW else 2 if rows <= SHORT else 3


def _grouped_alike(runs: list[_Run]) -> Iterator[list[_Run]]:
    """The groups of one extent's runs.

    A few drafts among many single rows are cut into rows like them, where what these read
    again takes less time than a group of its own.
    """
    few = [run for run in runs if _likeness(run) == 1]
    again = sum([(run.rows - 1) * len(run.pages) for run in few])
    if again <= _alone(runs[0].extent) and any(run.rows == 1 for run in runs):
        runs = [part for run in runs for part in (run.singly() if _likeness(run) == 1 else (run,))]
    for _, members in groupby(sorted(runs, key=_likeness), _likeness):
        yield from _partition(list(members))


def _alone(extent: Extent) -> float:
    """The pages that are read in the time that a group takes however little it reads."""
    return _GROUP_BYTES / (PAGE * extent.bytes_per_token / len(extent.keys))


def _partition(runs: list[_Run]) -> list[list[_Run]]:
    """Groups of runs alike that take the least time, by the pages they read, padding included."""
    if runs[0].rows > SHORT:
        return [[run] for run in runs]
    runs.sort(key=lambda run: len(run.pages))
    alone = _alone(runs[0].extent)
    ends = [i for i in range(1, len(runs)) if len(runs[i].pages) > len(runs[i - 1].pages)]
    # The least time for all runs up to each end, and where its last group starts.
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    for end in [*ends, len(runs)]:
        longest = len(runs[end - 1].pages)
        best[end] = min(
            (known + alone + (end - start) * longest, start) for start, (known, _) in best.items()
        )
    groups, end = [], len(runs)
    while end:
        start = best[end][1]
        groups.append(runs[start:end])
        end = start
    return groups


def _runs(
    piece: Rows,
    memory: Memory,
    window: int | None,
    row_bytes: int,
    device: torch.device,
    part: int,
) -> Iterator[_Run]:
    """A piece's rows in runs that are attended to at once, of pages from a multiple of `part`."""
    assert memory.extent is not None
    most = piece.count
    if piece.count > SHORT and device.type == "cpu":
        keys = piece.past + piece.count
        most = max(_LONG, _SCORES_BYTES // (row_bytes * keys))
    for start in range(0, piece.count, most):
        stop = min(piece.count, start + most)
        end = piece.past + (stop if piece.chained else piece.count)
        first = 0 if window is None else piece.first_seen(start, window) // PAGE // part * part
        pages = memory.pages[first : pages_of(end)]
        yield _Run(piece, memory.extent, range(start, stop), first, pages, end)


def _ways(piece: TreeRows, memory: Memory, window: int | None, part: int) -> Iterator[_Run]:
    """A run for each way through a tree, of pages from a multiple of `part`."""
    assert memory.extent is not None
    places = memory.places(0, piece.past + piece.count)
    for own, way in piece.ways():
        end = len(way)
        seen = 0 if window is None else max(0, end - len(own) + 1 - window)
        first = seen // PAGE // part * part
        pages = memory.pages[first : pages_of(end)]
        yield _Run(piece, memory.extent, own, first, pages, end, places[list(way)][first * PAGE :])
