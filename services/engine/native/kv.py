"""K/V of sequences in pages, on one token budget; see `services.engine.native.pages`.

The memory of a cache grows by pages up to its reservation.

A forward may leave out the attention of some layers; these keep no K/V of its
tokens. The cache knows from where on which layers lack K/V, and refuses a forward
that would attend there: along a text the set of layers left out only grows, until
a rollback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from services.engine.budgeted import BudgetedCache, KVBudget
from services.engine.native.pages import Arena, Memory

_NONE: frozenset[int] = frozenset()


class PagedBudget(KVBudget):
    """How many tokens of K/V an engine of `layers` layers may hold, and the pages for them."""

    def __init__(self, capacity: int, layers: int = 1) -> None:
        super().__init__(capacity)
        self.layers = layers
        self.arena = Arena(self)


class PagedCache(BudgetedCache):
    """K/V of one session (or of one branch of it)."""

    _budget: PagedBudget

    def __init__(self, budget: PagedBudget, reserve: int) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        super().__init__(budget, reserve)
        self._hold(Memory(budget.arena))

    def _hold(self, memory: Memory) -> None:
        self._memory = memory
        self._lacking: list[tuple[int, frozenset[int]]] = []
        """From which token on which layers lack K/V; every set holds those before it."""

    @property
    def lacking(self) -> frozenset[int]:
        """Layers without K/V of some token: what every forward has to skip."""
        return self._lacking[-1][1] if self._lacking else _NONE

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of K/V takes over all layers; 0 before the first forward."""
        extent = self._memory.extent
        return extent.bytes_per_token if extent else 0

    @torch.inference_mode()
    def _copy(self, other: PagedCache, length: int) -> None:
        self._memory = other._memory.copy(length, self._reserve)
        self._lacking = [one for one in other._lacking if one[0] < length]

    @torch.inference_mode()
    def _move(self, base: int, kept: Sequence[int]) -> None:
        self._memory.move(base, kept)

    def _shorten(self, length: int) -> None:
        super()._shorten(length)
        while self._lacking and self._lacking[-1][0] >= length:
            self._lacking.pop()

    def _hand_over(self, parked: Self) -> int:
        parked._memory = self._memory.hand_over()
        return parked._memory.room or self._length

    def _drop(self) -> None:
        memory = self._memory
        self._hold(Memory(self._budget.arena))
        memory.free()

    def check_prefix(self, length: int) -> None:
        """Raise ValueError unless the first `length` tokens are a chain with K/V in all layers."""
        super().check_prefix(length)
        if self._lacking and length > self._lacking[0][0]:
            raise ValueError(f"{length} tokens of a text that has K/V of {self._lacking[0][0]}")

    def check_layers(self, skipped: frozenset[int]) -> None:
        """Raise ValueError where layers lack K/V that are not among those `skipped`."""
        if not self.lacking <= skipped:
            lacking = sorted(self.lacking - skipped)
            raise ValueError(f"layers {lacking} lack K/V of tokens before; roll back or skip them")

    def _sibling(self, reserve: int) -> PagedCache:
        return PagedCache(self._budget, reserve)

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
        """Make the `count` tokens just written valid, which the layers `skipped` have no K/V of."""
        if len(skipped) > len(self.lacking):
            self._lacking.append((self._length, skipped))
        super().commit(count, base, parents)


class Loan(PagedCache):
    """The lender's K/V and, behind it, some more. It reserves nothing of its own.

    See `services.engine.lending` for the rules.
    """

    def __init__(self, lender: PagedCache) -> None:
        """Nothing is taken over yet: see `adopt`."""
        self._start(lender._budget, lender.reserve)
        self._hold(lender._memory)
        self._lender = lender

    @property
    def ended(self) -> bool:
        """Whether the lender gave its memory back."""
        return self.freed or self._lender.freed

    def adopt(self, length: int) -> None:
        """The first `length` tokens of both texts are the same: the lender's K/V holds for them.

        Raises ValueError for more than the lender has.
        """
        if not 0 <= length <= self._lender.length:
            raise ValueError(f"{length} tokens of a lender that has {self._lender.length}")
        kept = {max(start, length): layers for start, layers in self._lacking}
        self._length = max(self._length, length)
        self._lacking = [(start, kept[start]) for start in sorted(kept) if start < self._length]

    def check_append(self, count: int, base: int | None = None) -> None:
        """Also raise ValueError where the lender's text would be written over."""
        if self.ended:
            raise ValueError("the lender's cache was freed")
        if self._length < self._lender.length:
            raise ValueError(f"the lender holds {self._lender.length} tokens, not {self._length}")
        super().check_append(count, base)

    def free(self) -> None:
        """Let go of the memory, which stays the lender's."""
        self._end()
        self._hold(Memory(self._budget.arena))
