"""One forward's K/V: where its rows are written, and what its rows read. See `pages`.

Made once a step, for all layers. Rows of many sessions with texts of about the same
length are attended to in one go, padded to the longest; a long run of rows is cut, so that
its scores stay in the processor's caches and each part reads only what comes before it.

In a batch-invariant step the row of a tree reads the text on its path in one piece, as the row
of a chain does: each way to a leaf is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import cast

import numpy as np
import torch
from torch import Tensor

from services.engine.native.attending import Scoring, Steady
from services.engine.native.groups import Group, Rows, Run, TreeRows
from services.engine.native.pages import PAGE, Extent, Memory, pages_of
from services.engine.native.writes import Write

SHORT = 16
"""Rows of a session that are padded and attended to with those of others, at most."""
_FEW = 4
_LONG = 64
"""Rows that a long run is cut to, at least."""
_SCORES_BYTES = 1 << 20
"""Of a cut run: what fits the processor's caches."""
_GROUP_BYTES = 1 << 20
"""What is read in the time that a group takes however little it reads."""


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
        self._groups: dict[int | None, tuple[list[Group], Tensor | slice | None]] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store one layer's new K and V."""
        for write in self._writes:
            write.apart(layer, key[0], value[0])

    def write_both(self, layer: int, both: Tensor) -> None:
        """The same of K and V alike, as one: [2 * kv_heads, total, d], K's heads first."""
        for write in self._writes:
            write.together(layer, both)

    def attend(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """Queries [total, heads, d]; returns [total, heads * d_v]."""
        window = scoring.window
        if window not in self._groups:
            self._groups[window] = self._grouped(window, query)
        groups, back = self._groups[window]
        if len(groups) == 1:
            whole = groups[0].attend(layer, query, scoring)
        else:
            whole = torch.cat([group.attend(layer, query, scoring) for group in groups])
        if back is None:
            return whole
        return whole[back] if isinstance(back, slice) else whole.index_select(0, back)

    def _extents(self) -> dict[int, list[int]]:
        """Which pieces lie in which extent."""
        found: dict[int, list[int]] = {}
        for place, memory in enumerate(self._memories):
            found.setdefault(id(memory.extent), []).append(place)
        return found

    def _make_writes(self, key: Tensor) -> Iterator[Write]:
        """One for each extent."""
        extents = self._extents()
        for members in extents.values():
            extent = self._memories[members[0]].extent
            assert extent is not None
            own = [(self._pieces[place], self._memories[place]) for place in members]
            tokens = np.concatenate(
                [memory.places(piece.past, piece.past + piece.count) for piece, memory in own]
            )
            taken = [np.arange(piece.row, piece.row + piece.count) for piece, _ in own]
            rows = None if len(extents) == 1 else np.concatenate(taken)
            yield Write(extent, rows, tokens, key.device)

    def _runs(
        self, piece: Rows, memory: Memory, window: int | None, query: Tensor
    ) -> Iterator[Run]:
        # Keys are weighed in parts, which have to begin at the same ones for every row.
        steady = self._steady
        part = PAGE if steady is None or steady.keys is None else steady.keys
        if steady is not None and not piece.chained:
            return _ways(cast("TreeRows", piece), memory, window, part // PAGE)
        row_bytes = query.shape[1] * query.element_size()
        return _runs(piece, memory, window, row_bytes, query.device, part // PAGE)

    def _grouped(
        self, window: int | None, query: Tensor
    ) -> tuple[list[Group], Tensor | slice | None]:
        """All groups, and which row of what they return is which one of the step's."""
        total = len(query)
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
        every = list(range(total))
        if len(groups) == 1 and groups[0].own.tolist() == groups[0].rows[:total].tolist() == every:
            return groups, None if len(groups[0].rows) == total else slice(total)
        back, before = np.empty(total, np.int64), 0
        for group in groups:
            back[group.rows[group.own]] = before + group.own
            before += len(group.rows)
        return groups, torch.from_numpy(back).to(query.device)


def _extent(run: Run) -> tuple[int, bool]:
    """Runs that differ in this lie in different tensors, or are read in different units."""
    return id(run.extent), run.way is not None


def _likeness(run: Run) -> int:
    """Runs of one extent that differ in this are not attended to together: about how many rows."""
    rows = run.rows
    return 0 if rows == 1 else 1 if rows <= _FEW else 2 if rows <= SHORT else 3


def _grouped_alike(runs: list[Run]) -> Iterator[list[Run]]:
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


def _partition(runs: list[Run]) -> list[list[Run]]:
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
) -> Iterator[Run]:
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
        yield Run(piece, memory.extent, range(start, stop), first, pages, end)


def _ways(piece: TreeRows, memory: Memory, window: int | None, part: int) -> Iterator[Run]:
    """A run for each way through a tree, of pages from a multiple of `part`."""
    assert memory.extent is not None
    places = memory.places(0, piece.past + piece.count)
    for own, way in piece.ways():
        end = len(way)
        seen = 0 if window is None else max(0, end - len(own) + 1 - window)
        first = seen // PAGE // part * part
        pages = memory.pages[first : pages_of(end)]
        yield Run(piece, memory.extent, own, first, pages, end, places[list(way)][first * PAGE :])
