"""K/V of texts that were computed, for sessions whose text begins in the same way.

    a chat's next turn     begins with all of a text that ended: takes its cache over
    a shared beginning     is copied, from a text that ended or from one that goes on
    a text that is held    is one that ended, and waits for the next of a call

A text is known by its blocks of `BLOCK` tokens, each hashed together with all before it
and with its scope: sessions of another scope are never found. What was found by its hash
is compared token by token. Texts that ended are parked on what sessions leave of the K/V
budget, at most `most_tokens` of it; the one used longest ago goes first. Those that are held
are beyond that limit, and go last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING

from services.engine.port import freed_on_error

if TYPE_CHECKING:
    from services.engine.budgeted import BudgetedCache, BudgetedEngine

BLOCK = 16
"""Tokens of a hashed block. A shorter common beginning is not worth a copy."""
_MOST_COMPARED = 4


@dataclass(slots=True, eq=False)
class Known:
    """A text with K/V: parked, or a session's that may go on growing."""

    owner: PrefixCache
    scope: str
    text: Sequence[int]
    cache: BudgetedCache
    number: int = 0
    """Grows from text to text; one awaits none that came later, so that all get on."""
    parked: bool = False
    kept: bool = True
    """Whether it may be parked when it ends."""
    cached: int = 0
    """Tokens that it began with and that nobody fed for it."""
    awaited: Match | None = None
    """What another session is fed first, to be copied then."""
    seen: int = 0
    """Tokens of it that were in K/V at the last look."""
    hashes: list[int] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Whether another sequence is fed first, whose K/V it copies then."""
        return self.awaited is not None

    def settle(self) -> bool:
        """Copy what it waits for, if that is there; whether it waits for nothing any more."""
        match = self.awaited
        if match is not None and match.known.cache.freed:
            # It was given up: another one may be fed instead, of those that wait with this one.
            match = self.awaited = self.owner.find(self.scope, self.text, self)
        if match is None:
            return True
        if not match.ready or self._grows(match):
            return False
        self.owner.copy(match, self.cache)
        self.awaited, self.cached = None, self.cache.length
        return True

    def _grows(self, match: Match) -> bool:
        """Whether what it waits for lacks a part, and got longer since the last look."""
        before, self.seen = self.seen, match.known.cache.length
        return match.usable < match.length and self.seen > before

    def hold(self) -> Known:
        """Its session ended: what it leaves to its scope until that ends."""
        return self.owner.hold(self)

    def end(self) -> None:
        """Its session ended, or it need not be held any more: park it, or free its cache."""
        self.owner.end(self)

    def discard(self) -> None:
        """Its session ended in a way that leaves nothing to others."""
        self.owner.discard(self)


@dataclass(frozen=True, slots=True)
class Match:
    """A known text that begins with the same `length` tokens."""

    known: Known
    length: int

    @property
    def ready(self) -> bool:
        """Whether nearly all of them are in K/V, or never will be."""
        return self.known.cache.freed or self.length - self.known.cache.length < BLOCK

    @property
    def usable(self) -> int:
        """How many of them are in K/V now."""
        return min(self.length, self.known.cache.length)


class PrefixCache:
    """The texts of one engine. One caller at a time."""

    def __init__(self, engine: BudgetedEngine, most_tokens: int) -> None:
        """`most_tokens`: how many the parked texts may hold together; 0 = nothing is shared."""
        self._engine = engine
        self._most_tokens = most_tokens
        self._by_block: dict[int, dict[Known, None]] = {}
        self._parked: OrderedDict[Known, None] = OrderedDict()
        self._held: OrderedDict[Known, None] = OrderedDict()
        self._numbers = count(1)
        engine.budget.reclaim = self.evict

    @property
    def parked_tokens(self) -> int:
        """Tokens that parked texts hold."""
        return self._engine.budget.spare

    def open(self, scope: str, text: Sequence[int], reserve: int, *, kept: bool = True) -> Known:
        """Room for at least `reserve` tokens of a text, with what is known of its beginning.

        Others may copy from it while it goes on, and after its end where it is `kept`. Raises
        Overloaded, with nothing taken, without room.
        """
        match = self.find(scope, text)
        ready = match if match is not None and match.usable == match.length else None
        with freed_on_error(self._begin(ready, reserve)) as cache:
            known = Known(self, scope, text, cache, next(self._numbers), kept=kept)
            known.cached = cache.length
            if match is not None and ready is None:
                known.awaited, known.seen = match, match.known.cache.length
            if scope and (self._most_tokens or not kept):
                self._index(known, text)
        return known

    def find(self, scope: str, text: Sequence[int], before: Known | None = None) -> Match | None:
        """The known text that has most in common with all of `text` but its last token.

        `before`: only what came before it, or ended.
        """
        if not scope or not self._by_block:
            return None
        found: dict[Known, None] = {}
        for hashed in _hashes(scope, text[:-1]):
            holders = self._by_block.get(hashed, {})
            if not any(_precedes(known, before) for known in holders):
                break
            found = holders
        earlier = (known for known in reversed(found) if _precedes(known, before))
        newest = islice(earlier, _MOST_COMPARED)
        matches = [Match(known, _common(known, text)) for known in newest]
        best = max(matches, key=lambda match: (match.usable, match.length), default=None)
        # Two texts may share a hash.
        return best if best is not None and best.length >= BLOCK else None

    def _begin(self, match: Match | None, reserve: int) -> BudgetedCache:
        """A cache for at least `reserve` tokens that begins with what is ready of a match.

        Raises Overloaded without room.
        """
        if match is None:
            return self._engine.new_cache(reserve)
        if match.known.parked and match.length + BLOCK > match.known.cache.length:
            return self._take_over(match, reserve)
        with freed_on_error(self._engine.new_cache(reserve)) as cache:
            self.copy(match, cache)
        return cache

    def copy(self, match: Match, cache: BudgetedCache) -> None:
        """Fill an empty cache with what a match has in K/V; its text may be gone by now."""
        # Room made for the cache may have cost the match its own.
        if not match.known.cache.freed:
            cache.copy_prefix(match.known.cache, match.usable)
            if match.known.parked:
                self._shelf(match.known).move_to_end(match.known)

    def hold(self, known: Known) -> Known:
        """A session's text ended: what stays of it, whatever its size, until that ends."""
        if not known.scope or known.cache.length < BLOCK:
            self.discard(known)
            return known
        held = self._park(known, self._held)
        for other in self._beginnings(held):
            if other in self._held:
                self._drop(other)
        return held

    def end(self, known: Known) -> None:
        """A text ended, or need not be held any more: park it, or free its cache."""
        kept = known.scope and known.kept and BLOCK <= known.cache.length <= self._most_tokens
        if not kept or self._is_gone(known):
            self.discard(known)
            return
        if known.parked:
            del self._held[known]
            self._parked[known] = None
        else:
            known = self._park(known, self._parked)
        for other in self._beginnings(known):
            self._drop(other)
        held = sum(own.cache.reserve for own in self._held)
        self.evict(self.parked_tokens - held - self._most_tokens)

    def discard(self, known: Known) -> None:
        """A text ended in a way that leaves nothing to others."""
        if self._is_gone(known):
            return
        self._held.pop(known, None)
        self._forget(known)
        known.cache.free()

    def _is_gone(self, known: Known) -> bool:
        """Whether what was held is another session's by now, or was given up."""
        return known.parked and known not in self._held

    def _park(self, known: Known, shelf: OrderedDict[Known, None]) -> Known:
        """What a session leaves."""
        self._forget(known)
        text = tuple(known.text[: known.cache.length])
        cache, number = known.cache.park(), next(self._numbers)
        parked = Known(self, known.scope, text, cache, number, parked=True, kept=known.kept)
        shelf[parked] = None
        self._index(parked, text)
        return parked

    def evict_all(self) -> int:
        """Free all parked texts; how many tokens of K/V that were."""
        tokens = self.parked_tokens
        self.evict(tokens)
        return tokens

    def evict(self, tokens: int) -> None:
        """Free parked texts of at least so many tokens in all, those used longest ago first."""
        while tokens > 0 and (self._parked or self._held):
            known = next(iter(self._parked or self._held))
            tokens -= known.cache.reserve
            self._drop(known)

    def _take_over(self, match: Match, reserve: int) -> BudgetedCache:
        known, shelf = match.known, self._shelf(match.known)
        # Room made for it must not cost it its own.
        del shelf[known]
        try:
            known.cache.claim(reserve)
        except BaseException:
            shelf[known] = None
            raise
        with freed_on_error(known.cache) as cache:
            self._forget(known)
            cache.rollback(match.length)
        return cache

    def _beginnings(self, known: Known) -> list[Known]:
        """The other parked texts that this one begins with."""
        others = [own for own in self._by_block[known.hashes[0]] if own is not known]
        return [
            own
            for own in others
            if own.parked and tuple(own.text) == tuple(known.text[: len(own.text)])
        ]

    def _shelf(self, known: Known) -> OrderedDict[Known, None]:
        """Where a text lies that has no session."""
        return self._held if known in self._held else self._parked

    def _drop(self, known: Known) -> None:
        del self._shelf(known)[known]
        self._forget(known)
        known.cache.free()

    def _index(self, known: Known, text: Sequence[int]) -> None:
        known.hashes.extend(_hashes(known.scope, text))
        for hashed in known.hashes:
            self._by_block.setdefault(hashed, {})[known] = None

    def _forget(self, known: Known) -> None:
        for hashed in known.hashes:
            # One that failed while it was indexed is there in part.
            holders = self._by_block.get(hashed, {})
            holders.pop(known, None)
            if not holders:
                self._by_block.pop(hashed, None)
        known.hashes.clear()


def _hashes(scope: str, text: Sequence[int]) -> Iterator[int]:
    """One per whole block of the text."""
    hashed = hash(scope)
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        hashed = hash((hashed, tuple(text[start : start + BLOCK])))
        yield hashed


def _precedes(known: Known, other: Known | None) -> bool:
    return other is None or known.parked or known.number < other.number


def _common(known: Known, text: Sequence[int]) -> int:
    """Tokens that both begin with.

    The last one of a session's text never counts: its K/V comes with the next block.
    """
    other = known.text
    most = min(len(other) - (not known.parked), len(text) - 1)
    return next((i for i in range(most) if other[i] != text[i]), most)
