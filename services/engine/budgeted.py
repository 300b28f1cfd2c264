"""What engines in this process share: sequences with lengths and trees, on one token budget.

A cache reserves its room when it is made and never waits for more. Rolling back is a
length change: what lies beyond `length` is overwritten later.

A text that ended may stay, in case another one begins with it. Such a cache is parked:
what it holds is spare, and given back when a session needs the room.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar

from services.contract.errors import Overloaded
from services.contract.types import is_chain, node_depths
from services.engine.port import Segment
from services.engine.prefix_cache import PrefixCache


class KVBudget:
    """How many tokens of K/V an engine may hold; counts reservations.

    `used` are those of sessions; `spare` are held by parked caches. `reclaim` is called
    with a number of spare tokens that are needed, and frees as many at least.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
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


class BudgetedCache:
    """`KVCache` of the port, but for what it holds: kinds of it fill in `_copy` to `_drop`."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        if reserve < 1:
            raise ValueError(f"reserve must be at least 1, not {reserve}")
        budget.take(reserve)
        self._start(budget, reserve)

    def _start(self, budget: KVBudget, reserve: int) -> None:
        self._budget = budget
        self._reserve = reserve
        self._length = 0
        self._tree: tuple[int, tuple[int, ...]] | None = None
        self._parked = False
        self.freed = False
        """Whether its room was given back."""

    # --- what it holds --------------------------------------------------------

    def _copy(self, other: Any, length: int) -> None:
        """Hold what another one holds of its first `length` tokens, while this one is empty."""
        raise NotImplementedError

    def _move(self, base: int, kept: Sequence[int]) -> None:
        """Put the tokens at base + kept[i] to base + i; `kept` ascends."""
        raise NotImplementedError

    def _shorten(self, length: int) -> None:
        self._length = length

    def _hand_over(self, parked: Self) -> int:
        """Leave all to `parked`, a shallow copy of this; how many tokens that has room for."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Give back what it holds. Nothing else is asked of it from then on."""
        raise NotImplementedError

    # --- length and tree ------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens with valid K/V, unresolved tree nodes included."""
        return self._length

    @property
    def reserve(self) -> int:
        """The most tokens this cache may hold."""
        return self._reserve

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

    def _keep(self, base: int, kept: Sequence[int]) -> None:
        if list(kept) != list(range(len(kept))):
            self._move(base, kept)
        self._shorten(base + len(kept))

    def _check_path(self, base: int, path: Sequence[int]) -> None:
        parents = self.tree_at(base)
        for parent, node in pairwise((-1, *path)):
            if not 0 <= node < len(parents) or parents[node] != parent:
                raise ValueError(f"{list(path)} is not a path of the tree at {base}")

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

    # --- new tokens -----------------------------------------------------------

    def check_append(self, count: int, base: int | None = None) -> None:
        """Raise ValueError when `count` more tokens cannot be appended now.

        `base`: where the tree starts that they belong to; None when they follow the text.
        """
        if self.freed:
            raise ValueError("the cache was freed")
        if base is None and self._tree is not None:
            raise ValueError("a tree is still unresolved: keep a path of it or roll back first")
        if self._length + count > self._reserve:
            raise ValueError(f"{self._length} + {count} tokens exceed the reserved {self._reserve}")

    def commit(self, count: int, base: int, parents: tuple[int, ...] | None) -> None:
        """Make the `count` tokens just written valid.

        `parents`: those of the whole tree that starts at `base`, where it is no chain.
        """
        self._tree = None if parents is None else (base, parents)
        self._length += count

    # --- room, and other sequences --------------------------------------------

    def grow(self, reserve: int) -> None:
        """Reserve more; raises Overloaded, with nothing changed, without room."""
        self._budget.take(max(0, reserve - self._reserve))
        self._reserve = max(reserve, self._reserve)

    def fork(self, reserve: int) -> BudgetedCache:
        """Make a branch: the same content, independent from now on."""
        if reserve < self._length:
            raise ValueError(f"a branch of {self._length} tokens cannot reserve only {reserve}")
        branch = self._sibling(reserve)
        try:
            branch._copy(self, self._length)
        except BaseException:
            BudgetedCache.free(branch)
            raise
        branch._length, branch._tree = self._length, self._tree
        return branch

    def copy_prefix(self, other: Self, length: int) -> None:
        """Begin with the K/V of another text's first `length` tokens; this one is empty yet.

        Raises ValueError where there is something, or the other one has no such chain.
        """
        if self._length:
            raise ValueError(f"the cache holds {self._length} tokens already")
        if length > self._reserve:
            raise ValueError(f"{length} tokens exceed the reserved {self._reserve}")
        other.check_prefix(length)
        self._copy(other, length)
        self._length = length

    def check_prefix(self, length: int) -> None:
        """Raise ValueError unless the first `length` tokens are a chain."""
        whole = self._tree[0] if self._tree is not None else self._length
        if not 0 <= length <= whole:
            raise ValueError(f"{length} tokens of a text that has K/V of {whole}")

    def park(self) -> BudgetedCache:
        """The same content in a cache that waits for another session; this one is freed.

        It takes from the budget, as spare tokens, what it has room for.
        """
        parked = copy.copy(self)
        parked._reserve = min(self._reserve, max(1, self._hand_over(parked)))
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

    def _sibling(self, reserve: int) -> BudgetedCache:
        """An empty cache of the same kind, on the same budget."""
        return type(self)(self._budget, reserve)

    def free(self) -> None:
        """Give memory and reservation back. Calling it again does nothing."""
        if self.freed:
            return
        if self._parked:
            self._budget.spare -= self._reserve
        else:
            self._budget.give(self._reserve)
        self._end()
        self._drop()

    def _end(self) -> None:
        self.freed = True
        self._length, self._tree = 0, None


class BudgetedEngine:
    """`Engine` of the port, as far as room is concerned."""

    budget: KVBudget
    vocab_size: int
    max_context_length: int

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of K/V reserved by open caches."""
        return self.budget.used

    @property
    def kv_tokens_spare(self) -> int:
        """Tokens of K/V of texts that ended."""
        return self.budget.spare

    @property
    def kv_tokens_capacity(self) -> int:
        """Tokens of K/V that all caches may reserve together."""
        return self.budget.capacity

    def new_cache(self, reserve: int) -> BudgetedCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        raise NotImplementedError

    def prefix_cache(self, most_tokens: int) -> PrefixCache:
        """What shares beginnings; texts that ended hold at most so many tokens, 0 = none."""
        return PrefixCache(self, most_tokens)

    def check_ranges(
        self, token_ids: Sequence[int], positions: Sequence[int], soft: int = 0
    ) -> None:
        """Raise ValueError unless all of these tokens are known and within the context.

        `soft`: how many ids behind the vocabulary stand for soft tokens.
        """
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size + soft:
            raise ValueError(f"token ids must be within 0..{self.vocab_size - 1}")
        if max(positions) >= self.max_context_length:
            raise ValueError(
                f"position {max(positions)} is beyond the context of "
                f"{self.max_context_length} tokens"
            )


K = TypeVar("K", bound=BudgetedCache)


@dataclass(frozen=True, slots=True)
class Placed(Generic[K]):
    """Where a segment goes: behind `past` tokens of its cache, `parents` of all nodes from `base`.

    `parents` None: they form a chain, whose places are positions of the text.
    """

    cache: K
    past: int
    count: int
    base: int
    parents: tuple[int, ...] | None

    @property
    def positions(self) -> list[int]:
        """Position of each token in its session's text: what lies before it on its path."""
        return self.places[-self.count :]

    @property
    def places(self) -> list[int]:
        """The position of every token from `base` on."""
        if self.parents is None:
            return list(range(self.base, self.past + self.count))
        return [self.base + depth for depth in node_depths(self.parents)]

    @property
    def ways(self) -> list[list[int]]:
        """Of a tree, for each new leaf the places in the cache from the root's child down to it."""
        parents = self.parents or ()
        new = range(self.past - self.base, len(parents))
        inner = {parents[node] for node in new}
        return [self._way(parents, leaf) for leaf in new if leaf not in inner]

    def _way(self, parents: Sequence[int], leaf: int) -> list[int]:
        way = []
        while leaf >= 0:
            way.append(self.base + leaf)
            leaf = parents[leaf]
        return way[::-1]


def place(segment: Segment, kind: type[K]) -> Placed[K]:
    """Where a segment goes; raises ValueError, with nothing changed, where it does not fit.

    `kind`: that of the engine's own caches.
    """
    cache, count = segment.cache, len(segment.token_ids)
    if not isinstance(cache, kind):
        raise ValueError("a segment of another engine's cache")
    if count == 0:
        raise ValueError("a segment needs at least one token")
    if not 0 <= segment.logits_from <= count:
        raise ValueError(f"logits_from {segment.logits_from} is not within 0..{count}")
    if segment.base is not None and segment.parents is None:
        raise ValueError("a tree that grows needs the parents of its new nodes")
    cache.check_append(count, segment.base)
    base = cache.length if segment.base is None else segment.base
    return Placed(cache, cache.length, count, base, _tree_parents(segment, cache, base))


def _tree_parents(segment: Segment, cache: BudgetedCache, base: int) -> tuple[int, ...] | None:
    """The parents of all nodes from `base` on; None when they form a chain."""
    parents, count = segment.parents, len(segment.token_ids)
    if parents is None:
        return None
    if len(parents) != count:
        raise ValueError(f"{len(parents)} parents for {count} tokens")
    known = cache.tree_at(base)
    if any(not -1 <= parent < index for index, parent in enumerate(parents, len(known))):
        raise ValueError("parents must come before their children")
    whole = (*known, *parents)
    return None if is_chain(whole) else whole


def check_apart(segments: Sequence[Segment]) -> None:
    """Raise ValueError where two segments are of one cache."""
    if len({id(segment.cache) for segment in segments}) < len(segments):
        raise ValueError("two segments of one forward share a cache")
