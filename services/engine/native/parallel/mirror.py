"""What rank 0 does to its caches and feeds, as a message by which other ranks do the same.

A message is a run of pickled things: calls of cache methods, in their order, and at its end
a forward. Caches in it are numbers. It is written by rank 0 and read by
processes that it started, over a pair of sockets that nobody else holds.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.port import Segment

P = ParamSpec("P")
R = TypeVar("R")


class Caching(Protocol):
    """What a mirror needs of an engine."""

    def new_cache(self, reserve: int) -> PagedCache:
        """An empty cache."""

    def forward(self, segments: Sequence[Segment], /) -> list[Tensor]:
        """Append the segments' tokens to their caches."""


@dataclass(frozen=True, slots=True)
class Call:
    """`name(*arguments)` of a cache, or of the engine; `made`: the number of what it returned."""

    cache: PagedCache | None
    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    made: int | None = None


@dataclass(frozen=True, slots=True)
class Feeding:
    """A forward; `lengths`: what each segment's cache has to hold by then."""

    segments: tuple[Segment, ...]
    lengths: tuple[int, ...]


class Journal:
    """What was done to mirrored caches since it was last told."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._written = io.BytesIO()
        self._changing: list[PagedCache] = []

    def new_number(self) -> int:
        """A number for a cache; each is given once."""
        return next(self._numbers)

    @contextmanager
    def one_call(self, cache: PagedCache) -> Iterator[bool]:
        """Around a method: whether it is no part of another one of the same cache.

        What it does to other caches, as to those that make room for it, is noted.
        """
        outer = any(one is cache for one in self._changing)
        self._changing.append(cache)
        try:
            yield not outer
        finally:
            self._changing.pop()

    def note(self, call: Call) -> None:
        """Write a call down, with its arguments as they are now."""
        _Pickler(self._written, pickle.HIGHEST_PROTOCOL).dump(call)

    def told_with(self, segments: Sequence[Segment]) -> bytes:
        """The message of a forward: all calls since the last one, then the segments."""
        lengths = tuple(segment.cache.length for segment in segments)
        feeding = Feeding(tuple(segments), lengths)
        _Pickler(self._written, pickle.HIGHEST_PROTOCOL).dump(feeding)
        message, self._written = self._written.getvalue(), io.BytesIO()
        return message


def _mirrored(
    method: Callable[Concatenate[PagedCache, P], R],
) -> Callable[Concatenate[MirroredCache, P], R]:
    """The method, and a note of its call once it has succeeded."""

    @wraps(method)
    def call(cache: MirroredCache, /, *args: P.args, **kwargs: P.kwargs) -> R:
        was_freed = cache.freed
        with cache.journal.one_call(cache) as from_outside:
            result = method(cache, *args, **kwargs)
        if from_outside and not was_freed:
            made = _number(result) if isinstance(result, PagedCache) else None
            cache.journal.note(Call(cache, method.__name__, args, kwargs, made))
        return result

    return call


class MirroredCache(PagedCache):
    """A cache of rank 0, whose changes the other ranks repeat on one of their own.

    Whatever changes a cache apart from a forward is named here.
    """

    def __init__(self, journal: Journal, budget: PagedBudget, reserve: int) -> None:
        """As `PagedCache`; raises Overloaded, with nothing noted, without room."""
        super().__init__(budget, reserve)
        self.journal = journal
        self.number = journal.new_number()

    def _sibling(self, reserve: int) -> PagedCache:
        return MirroredCache(self.journal, self._budget, reserve)

    rollback = _mirrored(PagedCache.rollback)
    keep_path = _mirrored(PagedCache.keep_path)
    keep_branch = _mirrored(PagedCache.keep_branch)
    fork = _mirrored(PagedCache.fork)
    free = _mirrored(PagedCache.free)
    grow = _mirrored(PagedCache.grow)
    copy_prefix = _mirrored(PagedCache.copy_prefix)
    park = _mirrored(PagedCache.park)
    claim = _mirrored(PagedCache.claim)


def new_mirrored(journal: Journal, budget: PagedBudget, reserve: int) -> MirroredCache:
    """An empty cache, made on the other ranks, too. Raises Overloaded without room."""
    cache = MirroredCache(journal, budget, reserve)
    journal.note(Call(None, "new_cache", (reserve,), {}, cache.number))
    return cache


class Mirror:
    """The caches of another rank, which does what messages of rank 0 say."""

    def __init__(self, engine: Caching) -> None:
        self._engine = engine
        self._caches: dict[int, PagedCache] = {}

    def __len__(self) -> int:
        """Caches that were made and not freed."""
        return len(self._caches)

    def follow(self, message: bytes) -> None:
        """Repeat the calls, then run the forward.

        Raises RuntimeError where this rank does not hold what rank 0 holds: its part of the
        sums would be wrong, and so the text.
        """
        unread = io.BytesIO(message)
        while True:
            match _Unpickler(unread, self._caches).load():
                case Call() as call:
                    self._repeat(call)
                case Feeding(segments, lengths):
                    if tuple(segment.cache.length for segment in segments) != lengths:
                        raise RuntimeError("its caches are not those of rank 0")
                    self._engine.forward(segments)
                    return

    def _repeat(self, call: Call) -> None:
        owner = self._engine if call.cache is None else call.cache
        result = getattr(owner, call.name)(*call.arguments, **call.keywords)
        if call.made is not None:
            self._caches[call.made] = result
        if call.cache is not None and call.cache.freed:
            self._caches = {n: one for n, one in self._caches.items() if not one.freed}


class _Pickler(pickle.Pickler):
    """Writes a number for a cache."""

    def persistent_id(self, obj: object) -> int | None:
        return _number(obj) if isinstance(obj, PagedCache) else None


class _Unpickler(pickle.Unpickler):
    """Finds a cache by its number."""

    def __init__(self, file: io.BytesIO, caches: dict[int, PagedCache]) -> None:
        super().__init__(file)
        self._caches = caches

    def persistent_load(self, pid: int) -> PagedCache:
        return self._caches[pid]


def _number(cache: PagedCache) -> int:
    if not isinstance(cache, MirroredCache):
        raise TypeError("a cache that the other ranks do not have")
    return cache.number
