"""A session's text in place of its K/V, with the rules and the budget of all caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from services.engine.budgeted import BudgetedCache, KVBudget, Placed
from services.engine.synthetic.world import Place, World


class PlaceCache(BudgetedCache):
    """Holds the place after every token."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        super().__init__(budget, reserve)
        self._places: list[Place] = []

    def say(self, tokens: Sequence[int], placed: Placed[Self], world: World) -> list[Place]:
        """The place after each token of a segment that goes where `placed` says."""
        said = self._places[:]
        for index, token in enumerate(tokens, placed.past):
            before = index - 1
            if placed.parents is not None:
                parent = placed.parents[index - placed.base]
                before = placed.base - 1 if parent < 0 else placed.base + parent
            said.append((said[before] if before >= 0 else Place()).then(token, world))
        return said[placed.past :]

    def append(self, said: Sequence[Place], placed: Placed[Self]) -> None:
        """Hold what `say` gave."""
        self._places += said
        self.commit(placed.count, placed.base, placed.parents)

    def _copy(self, other: PlaceCache, length: int) -> None:
        self._places = other._places[:length]

    def _move(self, base: int, kept: Sequence[int]) -> None:
        self._places[base:] = [self._places[base + node] for node in kept]

    def _shorten(self, length: int) -> None:
        del self._places[length:]
        super()._shorten(length)

    def _hand_over(self, parked: Self) -> int:
        parked._places, self._places = self._places, []
        return self._length

    def _drop(self) -> None:
        self._places = []
