"""Per-session K/V caches on one token budget.

A cache reserves its room when it is made and never waits for more; its memory
grows by doubling up to that reservation, so appending is amortised O(1).
Rolling back is a length change: K/V beyond `length` is overwritten later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.errors import Overloaded

_FIRST_CAPACITY = 64


class KVBudget:
    """How many tokens of K/V the engine may hold; counts reservations."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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


@dataclass(slots=True)
class _LayerKV:
    """One layer's K and V: [1, kv_heads, capacity, head_dim]."""

    keys: Tensor
    values: Tensor

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def resized(self, capacity: int, length: int) -> _LayerKV:
        """Copy the first `length` tokens into buffers of another capacity."""
        return _LayerKV(_resize(self.keys, capacity, length), _resize(self.values, capacity, length))


def _resize(old: Tensor, capacity: int, length: int) -> Tensor:
    new = old.new_empty((1, old.shape[1], capacity, old.shape[3]))
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
        self._layers: dict[int, _LayerKV] = {}
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
    def layers(self) -> int:
        """How many layers have K/V here."""
        return len(self._layers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of K/V takes over all layers seen so far."""
        tensors = (t for kv in self._layers.values() for t in (kv.keys, kv.values))
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in tensors)

    def rollback(self, length: int) -> None:
        """Forget every token from `length` on. A tree is kept whole or cut to a chain."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll back to {length}: the cache holds {self._length} tokens")
        if self._tree is not None and length < self._length:
            base, parents = self._tree
            if not _is_chain(parents[: max(0, length - base)]):
                raise ValueError(f"cannot cut a tree at {length}: keep a path of it instead")
            self._tree = None
        self._length = length

    def keep_path(self, base: int, path: Sequence[int]) -> None:
        """Of the tree appended at `base`, keep the nodes of `path` as its continuation.

        `path` holds node indices from the root's child downwards; the length
        becomes base + len(path).
        """
        self._check_path(base, path)
        kept = list(path)
        if kept != list(range(len(kept))):
            self._compact(base, kept)
        self._tree = None
        self._length = base + len(kept)

    def _check_path(self, base: int, path: Sequence[int]) -> None:
        if self._tree is None:
            parents: tuple[int, ...] = tuple(range(-1, self._length - base - 1))
        elif self._tree[0] == base:
            parents = self._tree[1]
        else:
            raise ValueError(f"the tree was appended at {self._tree[0]}, not at {base}")
        for parent, node in zip((-1, *path), path, strict=False):
            if not 0 <= node < len(parents) or parents[node] != parent:
                raise ValueError(f"{list(path)} is not a path of the tree at {base}")

    @torch.inference_mode()
    def _compact(self, base: int, kept: list[int]) -> None:
        for kv in self._layers.values():
            index = torch.tensor(kept, device=kv.keys.device) + base
            for tensor in (kv.keys, kv.values):
                tensor[:, :, base : base + len(kept)] = tensor.index_select(2, index)

    @torch.inference_mode()
    def fork(self, reserve: int) -> KVCache:
        """Make a branch: the same content, independent from now on."""
        if reserve < self._length:
            raise ValueError(f"a branch of {self._length} tokens cannot reserve only {reserve}")
        branch = KVCache(self._budget, reserve)
        capacity = branch.capacity_for(self._length)
        for layer, kv in self._layers.items():
            branch._layers[layer] = kv.resized(capacity, self._length)
        branch._length, branch._tree = self._length, self._tree
        return branch

    def free(self) -> None:
        """Give memory and reservation back. Calling it again does nothing."""
        if not self._freed:
            self._freed = True
            self._layers.clear()
            self._length, self._tree = 0, None
            self._budget.give(self._reserve)

    # --- for the engine's forward --------------------------------------------

    def check_append(self, count: int) -> None:
        """Raise ValueError when `count` more tokens cannot be appended now."""
        if self._freed:
            raise ValueError("the cache was freed")
        if self._tree is not None:
            raise ValueError("a tree is still unresolved: keep a path of it or roll back first")
        if self._length + count > self._reserve:
            raise ValueError(f"{self._length} + {count} tokens exceed the reserved {self._reserve}")

    def capacity_for(self, tokens: int) -> int:
        """Buffer size for `tokens`: the next power of two within the reservation."""
        return min(self._reserve, max(_FIRST_CAPACITY, 1 << (tokens - 1).bit_length()))

    def write(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new K and V [1, kv_heads, n, head_dim] at `start`.

        Returns views of everything up to there, [1, kv_heads, start + n, head_dim].
        """
        count = keys.shape[2]
        end = start + count
        kv = self._layers.get(layer)
        if kv is None or kv.capacity < end:
            kv = self._grow(layer, kv, start, end, keys, values)
        kv.keys.narrow(2, start, count).copy_(keys)
        kv.values.narrow(2, start, count).copy_(values)
        return kv.keys.narrow(2, 0, end), kv.values.narrow(2, 0, end)

    def _grow(
        self, layer: int, kv: _LayerKV | None, start: int, end: int, keys: Tensor, values: Tensor
    ) -> _LayerKV:
        old = kv if kv is not None else _LayerKV(keys, values)
        grown = old.resized(self.capacity_for(end), start if kv is not None else 0)
        self._layers[layer] = grown
        return grown

    def commit(self, count: int, parents: tuple[int, ...] | None) -> None:
        """Make the `count` tokens just written valid."""
        if parents is not None and not _is_chain(parents):
            self._tree = (self._length, parents)
        self._length += count


def _is_chain(parents: Sequence[int]) -> bool:
    return all(parent == index - 1 for index, parent in enumerate(parents))
