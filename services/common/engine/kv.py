"""Per-session K/V caches on one token budget.

A cache reserves its room when it is made and never waits for more; its memory
grows by doubling up to that reservation, so appending is amortised O(1).
Rolling back is a length change: K/V beyond `length` is overwritten later.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from services.common.errors import Overloaded
from services.common.types import is_chain

_FIRST_CAPACITY = 64


class KVBudget:
    """How many tokens of K/V an engine of `layers` layers may hold; counts reservations."""

    def __init__(self, capacity: int, layers: int = 1) -> None:
        self.capacity = capacity
        self.layers = layers
        self.used = 0

    def take(self, tokens: int) -> None:
        """Reserve `tokens`; raises Overloaded when they do not fit."""
        if self.used + tokens > self.capacity:
            free = self.capacity - self.used
            raise Overloaded(f"KV cache: {tokens} tokens asked for, {free} of {self.capacity} free")
        self.used += tokens

    def give(self, tokens: int) -> None:
        """Return a reservation."""
        self.used -= tokens


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


class KVCache:
    """K/V of one session (or of one branch of it)."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        if reserve < 1:
            raise ValueError(f"reserve must be at least 1, not {reserve}")
        budget.take(reserve)
        self._budget = budget
        self._reserve = reserve
        self._store: Store | None = None
        self._length = 0
        self._tree: tuple[int, tuple[int, ...]] | None = None
        self._freed = False

    @property
    def length(self) -> int:
        """Tokens with valid K/V, unresolved tree nodes included."""
        return self._length

    @property
    def reserve(self) -> int:
        """The most tokens this cache may hold."""
        return self._reserve

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of K/V takes over all layers; 0 before the first forward."""
        return self._store.bytes_per_token if self._store else 0

    def rollback(self, length: int) -> None:
        """Forget every token from `length` on. A tree is kept whole or cut to a chain."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll back to {length}: the cache holds {self._length} tokens")
        if self._tree is not None and length < self._length:
            base, parents = self._tree
            if not is_chain(parents[: max(0, length - base)]):
                raise ValueError(f"cannot cut a tree at {length}: keep a path of it instead")
            self._tree = None
        self._length = length

    @torch.inference_mode()
    def keep_path(self, base: int, path: Sequence[int]) -> None:
        """Of the tree appended at `base`, keep the nodes of `path` as its continuation.

        `path` holds node indices from the root's child downwards; the length
        becomes base + len(path). Raises ValueError when it is no path.
        """
        self._check_path(base, path)
        if self._store is not None and list(path) != list(range(len(path))):
            self._store.move(base, path)
        self._tree = None
        self._length = base + len(path)

    def _check_path(self, base: int, path: Sequence[int]) -> None:
        if not 0 <= base <= self._length:
            raise ValueError(f"no tree at {base}: the cache holds {self._length} tokens")
        if self._tree is not None and self._tree[0] != base:
            raise ValueError(f"the tree was appended at {self._tree[0]}, not at {base}")
        parents = self._tree[1] if self._tree else range(-1, self._length - base - 1)
        for parent, node in pairwise((-1, *path)):
            if not 0 <= node < len(parents) or parents[node] != parent:
                raise ValueError(f"{list(path)} is not a path of the tree at {base}")

    @torch.inference_mode()
    def fork(self, reserve: int) -> KVCache:
        """Make a branch: the same content, independent from now on."""
        if reserve < self._length:
            raise ValueError(f"a branch of {self._length} tokens cannot reserve only {reserve}")
        branch = KVCache(self._budget, reserve)
        if self._store is not None:
            branch._store = self._store.resized(branch._capacity(self._length), self._length)
        branch._length, branch._tree = self._length, self._tree
        return branch

    def free(self) -> None:
        """Give memory and reservation back. Calling it again does nothing."""
        if not self._freed:
            self._freed = True
            self._store, self._length, self._tree = None, 0, None
            self._budget.give(self._reserve)

    def check_append(self, count: int) -> None:
        """Raise ValueError when `count` more tokens cannot be appended now."""
        if self._freed:
            raise ValueError("the cache was freed")
        if self._tree is not None:
            raise ValueError("a tree is still unresolved: keep a path of it or roll back first")
        if self._length + count > self._reserve:
            raise ValueError(f"{self._length} + {count} tokens exceed the reserved {self._reserve}")

    def append(self, count: int) -> Append:
        """Start writing `count` tokens after the valid ones."""
        return Append(self, count)

    def room(self, end: int, key: Tensor, value: Tensor) -> Store:
        """The store, grown to hold `end` tokens; made for this K and V at first."""
        if self._store is None:
            self._store = Store.like(self._budget.layers, self._capacity(end), key, value)
        elif self._store.capacity < end:
            self._store = self._store.resized(self._capacity(end), self._length)
        return self._store

    def _capacity(self, tokens: int) -> int:
        """Memory for `tokens`: the next power of two within the reservation."""
        return min(self._reserve, max(_FIRST_CAPACITY, 1 << (tokens - 1).bit_length()))

    def commit(self, count: int, parents: tuple[int, ...] | None) -> None:
        """Make the `count` tokens just written valid; `parents` when they form a tree."""
        if parents is not None:
            self._tree = (self._length, parents)
        self._length += count


class Append:
    """One step's writes to a cache. The views of all layers are made at once."""

    def __init__(self, cache: KVCache, count: int) -> None:
        self._cache, self._past, self._count = cache, cache.length, count
        self._layers = cache._budget.layers
        self._views: tuple[tuple[Tensor, ...], ...] | None = None
        self._written = 0

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new K and V [1, kv_heads, count, head_dim].

        Returns views of everything up to there, [1, kv_heads, past + count, head_dim].
        """
        views = self._views if self._views is not None else self._open(key, value)
        new_keys, new_values, keys, values = views
        new_keys[layer].copy_(key)
        new_values[layer].copy_(value)
        self._written += 1
        return keys[layer], values[layer]

    def _open(self, key: Tensor, value: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        end = self._past + self._count
        store = self._cache.room(end, key, value)
        self._views = store.layer_views(self._past, self._count) + store.layer_views(0, end)
        return self._views

    def commit(self, parents: tuple[int, ...] | None) -> None:
        """Make the tokens valid; RuntimeError unless every layer was written once."""
        if self._written != self._layers:
            raise RuntimeError(f"{self._written} of {self._layers} layers kept K/V")
        self._cache.commit(self._count, parents)
