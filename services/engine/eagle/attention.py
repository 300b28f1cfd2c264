"""Attention of a pass: by the engine's paging, or for one session of a few rows directly.

Paging serves many sessions at once, and costs as much as such a pass of one does otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.eagle.step import Run
from services.engine.native.attending import Scoring, attend
from services.engine.native.pages import PAGE, Extent
from services.engine.native.paging import Paging

_FEW_ROWS, _FEW_KEYS = 16, 2048


class Attention:
    """Stores K/V of each layer and attends to it."""

    def __init__(self, runs: Sequence[Run], scoring: Sequence[Scoring]) -> None:
        """`scoring`: of each layer."""
        self._runs, self._scoring = runs, scoring
        self._paging: Paging | None = None
        self._lone: Lone | None = None

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Query [1, heads, n, d], key and value [1, kv_heads, n, d]; returns [n, heads * d]."""
        if self._lone is None and self._paging is None:
            self._begin(query.shape[1] // key.shape[1], key, value)
        if self._lone is not None:
            return self._lone(layer, query, key, value, self._scoring[layer])
        assert self._paging is not None
        self._paging.write(layer, key, value)
        return self._paging.attend(layer, query[0].transpose(0, 1), self._scoring[layer])

    def _begin(self, groups: int, key: Tensor, value: Tensor) -> None:
        if len(self._runs) == 1:
            self._lone = lone(self._runs[0], groups, key, value)
        if self._lone is None:
            self._paging = Paging(self._runs, key, value)


class Lone:
    """Few rows of one session whose pages lie in one piece."""

    def __init__(self, run: Run, extent: Extent, first: int, groups: int, like: Tensor) -> None:
        """`first`: the place of the text's first token in the extent. `groups`: heads to a key."""
        self._extent, self._run, self._first = extent, run, first
        self._new = slice(first + run.past, first + run.past + run.count)
        self._groups, self._like = groups, like
        self._seen: dict[int | None, tuple[slice, Tensor | None]] = {}

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """As `Attention`."""
        keys, values = (
            stored[layer].flatten(1, 2) for stored in (self._extent.keys, self._extent.values)
        )
        keys[:, self._new] = key[0]
        values[:, self._new] = value[0]
        heads, width = query.shape[1], query.shape[-1]
        rows = query.reshape(len(keys), -1, width)
        window = scoring.window
        if window not in self._seen:
            self._seen[window] = self._sees(window)
        read, mask = self._seen[window]
        out = attend(rows, keys[:, read], values[:, read], mask, scoring)
        count = self._run.count
        return out.view(heads, count, -1).transpose(0, 1).reshape(count, -1)

    def _sees(self, window: int | None) -> tuple[slice, Tensor | None]:
        """The places that any of the rows sees, and which each does; None: all of them."""
        run, begin = self._run, 0
        if window is not None:
            begin = run.first_seen(0, window)
        read = slice(self._first + begin, self._new.stop)
        if run.chained and run.count == 1:
            return read, None
        seen = run.visible(window).numpy()[:, begin:]
        return read, _additive(seen, self._groups, self._like)


def lone(run: Run, groups: int, key: Tensor, value: Tensor) -> Lone | None:
    """What attends for this run alone; None where that is not the fast way."""
    if run.count > _FEW_ROWS or run.past + run.count > _FEW_KEYS:
        return None
    memory = run.reach(key, value)
    pages = memory.pages
    assert memory.extent is not None
    if pages != list(range(pages[0], pages[0] + len(pages))):
        return None
    return Lone(run, memory.extent, pages[0] * PAGE, groups, key)


def _additive(seen: NDArray[np.bool_], groups: int, like: Tensor) -> Tensor:
    """[1, groups * rows, keys]: 0 where something is seen and -inf where not, as `like`."""
    mask = np.where(seen, np.float32(0), np.float32(-np.inf))
    return torch.from_numpy(np.tile(mask, (groups, 1))).to(like.device, like.dtype)[None]
