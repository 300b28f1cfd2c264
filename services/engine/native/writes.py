"""Where a step's new K/V goes in one extent, made once a step for all layers."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from services.engine.native.pages import Extent, Places


class Write:
    """Some of a step's rows and their places."""

    def __init__(
        self, extent: Extent, rows: Places | None, places: Places, device: torch.device
    ) -> None:
        """`rows` None: all of the step's. `places`: of each row, in tokens."""
        self._extent = extent
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)
        first = int(places[0])
        self._run: slice | None = None
        if (np.diff(places) == 1).all():
            self._run = slice(first, first + len(places))
        self._places = torch.from_numpy(places).to(device)

    def apart(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store K and V of one layer, [kv_heads, total, d] each."""
        keys, values = self._apart
        self._store(keys[layer], key)
        self._store(values[layer], value)

    def together(self, layer: int, both: Tensor) -> None:
        """The same as one, [2 * kv_heads, total, d]."""
        self._store(self._together[layer], both)

    def _store(self, target: Tensor, new: Tensor) -> None:
        own = new if self._rows is None else new.index_select(1, self._rows)
        if self._run is None:
            target.index_copy_(1, self._places, own)
        else:
            target.copy_(own)

    @cached_property
    def _apart(self) -> tuple[tuple[Tensor, ...], ...]:
        return tuple(self._targets(whole) for whole in self._extent.whole)

    @cached_property
    def _together(self) -> tuple[Tensor, ...]:
        assert self._extent.both is not None
        return self._targets(self._extent.both.flatten(2, 3))

    def _targets(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Of every layer all places, or those of a run of rows."""
        return (whole if self._run is None else whole[:, :, self._run]).unbind()
