"""Caches that hold tokens where the real ones hold K/V."""

from __future__ import annotations

from collections.abc import Sequence

from services.engine.native.kv import KVBudget


class TokenCache:
    """A session's text, with the budget and the life of a `KVCache`."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        budget.take(reserve)
        self.budget, self.reserve = budget, reserve
        self.tokens: list[int] = []
        self.freed = self.parked = False

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.tokens)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens."""
        assert 0 <= length <= self.length
        del self.tokens[length:]

    def keep_path(self, base: int, path: Sequence[int]) -> None:
        """Of the rows from `base` on keep those of `path`, in its order."""
        self.tokens[base:] = [self.tokens[base + row] for row in path]

    def grow(self, reserve: int) -> None:
        """Reserve more."""
        self.budget.take(max(0, reserve - self.reserve))
        self.reserve = max(reserve, self.reserve)

    def copy_prefix(self, other: TokenCache, length: int) -> None:
        """Begin as another text does."""
        assert not self.tokens
        assert not other.freed
        self.tokens = other.tokens[:length]
        assert len(self.tokens) == length <= self.reserve

    def park(self) -> TokenCache:
        """The same text in a cache that waits for a session."""
        parked = type(self)(self.budget, 0)
        parked.tokens, parked.reserve, parked.parked = self.tokens, len(self.tokens), True
        self.tokens = []
        self.free()
        self.budget.spare += parked.reserve
        return parked

    def claim(self, reserve: int) -> None:
        """Be a session's again."""
        assert self.parked
        self.budget.spare -= self.reserve
        self.reserve, self.parked = max(reserve, self.reserve), False
        self.budget.take(self.reserve)

    def free(self) -> None:
        """Give the reservation back. Idempotent."""
        if self.freed:
            return
        self.freed = True
        if self.parked:
            self.budget.spare -= self.reserve
        else:
            self.budget.give(self.reserve)
