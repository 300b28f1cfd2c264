"""The memory of one session's K/V."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Store:
    """K and V of all layers, [layers, 1, capacity, kv_heads, head_dim] each.

    A token's heads lie together, so that a session's text is one piece of memory.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    @classmethod
    def like(cls, layers: int, capacity: int, key: Tensor, value: Tensor) -> Store:
        """An empty store for tensors shaped as one layer's K and V, [1, kv_heads, n, head_dim]."""
        return cls(
            *(t.new_empty((layers, 1, capacity, t.shape[1], t.shape[3])) for t in (key, value))
        )

    @property
    def capacity(self) -> int:
        """Tokens it has memory for."""
        return self.keys.shape[2]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V over all layers."""
        return sum(t.nbytes // t.shape[2] for t in (self.keys, self.values))

    def resized(self, capacity: int, length: int) -> Store:
        """A copy of the first `length` tokens, with another capacity."""
        return Store(*(_resized(t, capacity, length) for t in (self.keys, self.values)))

    def move(self, base: int, kept: Sequence[int]) -> None:
        """Put the tokens at base + kept[i] to base + i."""
        index = torch.tensor(kept, device=self.keys.device) + base
        for tensor in (self.keys, self.values):
            tensor[:, :, base : base + len(kept)] = tensor.index_select(2, index)

    def layer_views(self, start: int, count: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """K and V of each layer, [1, kv_heads, count, head_dim], of `count` tokens from `start`."""
        cut = (t.narrow(2, start, count).transpose(2, 3) for t in (self.keys, self.values))
        keys, values = (t.unbind(0) for t in cut)
        return keys, values


def _resized(old: Tensor, capacity: int, length: int) -> Tensor:
    new = old.new_empty((*old.shape[:2], capacity, *old.shape[3:]))
    new[:, :, :length] = old[:, :, :length]
    return new


class Memory:
    """One session's store, made at the first write and grown as needed.

    A cache and what borrows from it hold the same one, so all of them see it grow.
    """

    def __init__(self, store: Store | None = None, filled: int = 0) -> None:
        """`filled`: tokens of the store that may matter to somebody."""
        self.store = store
        self._filled = filled

    def room(self, end: int, capacity: int, layers: int, key: Tensor, value: Tensor) -> Store:
        """The store, with `capacity` >= `end` if it has to grow; made for this K and V at first."""
        if self.store is None:
            self.store = Store.like(layers, capacity, key, value)
        elif self.store.capacity < end:
            self.store = self.store.resized(capacity, self._filled)
        self._filled = max(self._filled, end)
        return self.store

    def copy(self, capacity: int, length: int) -> Memory:
        """The first `length` tokens, apart from now on."""
        if self.store is None:
            return Memory()
        return Memory(self.store.resized(capacity, length), length)
