"""Per-session K/V caches on one token budget.

A cache reserves its room when it is made and never waits for more; its memory grows
by pages up to that reservation (`services.engine.native.pages`). Rolling back is a
length change: K/V beyond `length` is overwritten later.

A forward may leave out the attention of some layers; these keep no K/V of its
tokens. The cache knows from where on which layers lack K/V, and refuses a forward
that would attend there: along a text the set of layers left out only grows, until
a rollback.

A text that ended may stay, in case another one begins with it. Such a cache is parked:
what it holds is spare, and given back when a session needs the room.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from services.contract.errors import Overloaded
from services.contract.types import is_chain
from services.engine.native.pages import Arena, Memory

_NONE: frozenset[int] = frozenset()

C = TypeVar("C", bound="KVCache")


class KVBudget:
    """How many tokens of K/V an engine of `layers` layers may hold; counts reservations.

    `used` are those of sessions; `spare` are held by parked caches. `reclaim` is called
    with a number of spare tokens that are needed, and frees as many at least.
    """

    def __init__(self, capacity: int, layers: int = 1) -> None:
        self.capacity = capacity
        self.layers = layers
        self.arena = Arena(self)
        self.used = 0
        self.spare = 0
        self.reclaim: Callable[[int], object] | None = None

    def take(self, tokens: int) -> None:
        """Reserve `tokens`; raises Overloaded when they do not fit."""
        free = self.capacity - self.used
        if tokens > free:
            raise Overloaded(f"KV cache: {tokens} tokens asked for, {free} of {self.capacity} free")
        if self.reclaim is not None and tokens > free - self.spare:
            self.reclaim(tokens - (free - self.spare))
        self.used += tokens

    def give(self, tokens: int) -> None:
        """Return a reservation."""
        self.used -= tokens


class Budgeted:
    """An engine whose caches share a budget."""

    budget: KVBudget

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of K/V reserved by open caches."""
        return self.budget.used

    @property
    def kv_tokens_capacity(self) -> int:
        """Tokens of K/V that all caches may reserve together."""
        return self.budget.capacity


@contextmanager
def freed_on_error(cache: C) -> Iterator[C]:
    """Around what a cache was made for: where that fails, the cache is freed."""
    try:
        yield cache
    except BaseException:
        cache.free()
        raise


class KVCache:
    """K/V of one session (or of one branch of it)."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        if reserve < 1:
            raise ValueError(f"reserve must be at least 1, not {reserve}")
        budget.take(reserve)
        self._start(budget, reserve, Memory(budget.arena))

    def _start(self, budget: KVBudget, reserve: int, memory: Memory) -> None:
        self._budget = budget
        self._reserve = reserve
        self._memory = memory
        self._length = 0
        self._tree: tuple[int, tuple[int, ...]] | None = None
        self._lacking: list[tuple[int, frozenset[int]]] = []
        """From which token on which layers lack K/V; every set holds those before it."""
        self._parked = False
        self.freed = False
        """Whether its memory was given back."""

    @property
    def length(self) -> int:
        """Tokens with valid K/V, unresolved tree nodes included."""
        return self._length

    @property
    def reserve(self) -> int:
        """The most tokens this cache may hold."""
        return self._reserve

    @property
    def lacking(self) -> frozenset[int]:
        """Layers without K/V of some token: what every forward has to skip."""
        return self._lacking[-1][1] if self._lacking else _NONE

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of K/V takes over all layers; 0 before the first forward."""
        extent = self._memory.extent
        return extent.bytes_per_token if extent else 0

    def rollback(self, length: int) -> None:
        """Forget every token from `length` on. A tree is kept whole or cut to a chain."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot roll back to {length}: the cache holds {self._length} tokens")
        if self._tree is not None and length < self._length:
            base, parents = self._tree
            if not is_chain(parents[: max(0, length - base)]):
                raise ValueError(f"cannot cut a tree at {length}: keep a path of it instead")
            self._tree = None
        self._shorten(length)

    def _shorten(self, length: int) -> None:
        self._length = length
        while self._lacking and self._lacking[-1][0] >= length:
            self._lacking.pop()

    def keep_path(self, base: int, path: Sequence[int]) -> None:
        """Of the tree appended at `base`, keep the nodes of `path` as its continuation.

        `path` holds node indices from the root's child downwards; the length
        becomes base + len(path). Raises ValueError when it is no path.
        """
        self._check_path(base, path)
        self._keep(base, path)
        self._tree = None

    def keep_branch(self, base: int, path: Sequence[int]) -> None:
        """The same, and the nodes below the path's end stay, in their order, as the tree there."""
        self._check_path(base, path)
        parents = self.tree_at(base)
        index = {path[-1] if path else -1: -1}
        for node, parent in enumerate(parents):
            if parent in index:
                index[node] = len(index) - 1
        below = tuple(index)[1:]
        self._keep(base, (*path, *below))
        left = tuple(index[parents[node]] for node in below)
        self._tree = None if is_chain(left) else (base + len(path), left)

    @torch.inference_mode()
    def _keep(self, base: int, kept: Sequence[int]) -> None:
        if list(kept) != list(range(len(kept))):
            self._memory.move(base, kept)
        self._shorten(base + len(kept))

    def _check_path(self, base: int, path: Sequence[int]) -> None:
        parents = self.tree_at(base)
        for parent, node in pairwise((-1, *path)):
            if not 0 <= node < len(parents) or parents[node] != parent:
                raise ValueError(f"{list(path)} is not a path of the tree at {base}")

    @torch.inference_mode()
    def fork(self, reserve: int) -> KVCache:
        """Make a branch: the same content, independent from now on."""
        if reserve < self._length:
            raise ValueError(f"a branch of {self._length} tokens cannot reserve only {reserve}")
        branch = self._sibling(reserve)
        try:
            branch._memory = self._memory.copy(self._length, reserve)
        except BaseException:
            KVCache.free(branch)
            raise
        branch._length, branch._tree = self._length, self._tree
        branch._lacking = list(self._lacking)
        return branch

    def grow(self, reserve: int) -> None:
        """Reserve more; raises Overloaded, with nothing changed, without room."""
        self._budget.take(max(0, reserve - self._reserve))
        self._reserve = max(reserve, self._reserve)

    @torch.inference_mode()
    def copy_prefix(self, other: KVCache, length: int) -> None:
        """Begin with the K/V of another text's first `length` tokens; this one is empty yet.

        Raises ValueError where there is something, or the other one has no such chain.
        """
        if self._length:
            raise ValueError(f"the cache holds {self._length} tokens already")
        if length > self._reserve:
            raise ValueError(f"{length} tokens exceed the reserved {self._reserve}")
        other.check_prefix(length)
        self._memory = other._memory.copy(length, self._reserve)
        self._length = length

    def check_prefix(self, length: int) -> None:
        """Raise ValueError unless the first `length` tokens are a chain with K/V in all layers."""
        whole = self._tree[0] if self._tree is not None else self._length
        if self._lacking:
            whole = min(whole, self._lacking[0][0])
        if not 0 <= length <= whole:
            raise ValueError(f"{length} tokens of a text that has K/V of {whole}")

    def park(self) -> KVCache:
        """The same content in a cache that waits for another session; this one is freed.

        It takes from the budget, as spare tokens, what it has memory for.
        """
        parked = copy.copy(self)
        parked._memory = self._memory.hand_over()
        parked._reserve = min(self._reserve, max(1, parked._memory.room or self._length))
        parked._parked = True
        self.free()
        parked._budget.spare += parked._reserve
        return parked

    def claim(self, reserve: int) -> None:
        """Be a session's again, with at least this reservation.

        Raises Overloaded, with nothing changed, without room.
        """
        if not self._parked:
            raise ValueError("the cache is a session's already")
        self._budget.spare -= self._reserve
        try:
            self._budget.take(max(reserve, self._reserve))
        except BaseException:
            self._budget.spare += self._reserve
            raise
        self._reserve, self._parked = max(reserve, self._reserve), False

    def _sibling(self, reserve: int) -> KVCache:
        """An empty cache of the same kind, on the same budget."""
        return KVCache(self._budget, reserve)

    def free(self) -> None:
        """Give memory and reservation back. Calling it again does nothing."""
        if self.freed:
            return
        memory, reserve = self._memory, self._reserve
        self._end()
        if self._parked:
            self._budget.spare -= reserve
        else:
            self._budget.give(reserve)
        memory.free()

    def _end(self) -> None:
        self.freed = True
        self._memory = Memory(self._budget.arena)
        self._length, self._tree, self._lacking = 0, None, []

    def tree_at(self, base: int) -> Sequence[int]:
        """Parents of the nodes appended at `base`, counted from there; a chain if no tree is open.

        Raises ValueError when no tree stands there.
        """
        if not 0 <= base <= self._length:
            raise ValueError(f"no tree at {base}: the cache holds {self._length} tokens")
        if self._tree is None:
            return range(-1, self._length - base - 1)
        if self._tree[0] != base:
            raise ValueError(f"the tree was appended at {self._tree[0]}, not at {base}")
        return self._tree[1]

    def check_append(
        self, count: int, base: int | None = None, skipped: frozenset[int] = _NONE
    ) -> None:
        """Raise ValueError when `count` more tokens cannot be appended now.

        `base`: where the tree starts that they belong to; None when they follow the text.
        `skipped`: layers whose attention is left out of the forward.
        """
        if not self.lacking <= skipped:
            lacking = sorted(self.lacking - skipped)
            raise ValueError(f"layers {lacking} lack K/V of tokens before; roll back or skip them")
        if self.freed:
            raise ValueError("the cache was freed")
        if base is None and self._tree is not None:
            raise ValueError("a tree is still unresolved: keep a path of it or roll back first")
        if self._length + count > self._reserve:
            raise ValueError(f"{self._length} + {count} tokens exceed the reserved {self._reserve}")

    def reach(self, end: int, key: Tensor, value: Tensor) -> Memory:
        """The memory, with room for `end` tokens shaped as one layer's K and V."""
        self._memory.reach(end, self._reserve, key, value)
        return self._memory

    def commit(
        self,
        count: int,
        base: int,
        parents: tuple[int, ...] | None,
        skipped: frozenset[int] = _NONE,
    ) -> None:
        """Make the `count` tokens just written valid.

        `parents`: those of the whole tree that starts at `base`, where it is no chain.
        """
        if len(skipped) > len(self.lacking):
            self._lacking.append((self._length, skipped))
        self._tree = None if parents is None else (base, parents)
        self._length += count
