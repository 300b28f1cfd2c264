"""A session's text in place of its K/V, with the rules and the budget of all caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from services.engine.budgeted import BudgetedCache, KVBudget
from services.engine.synthetic.world import Place, World


class PlaceCache(BudgetedCache):
    """Holds the place after every token."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        super().__init__(budget, reserve)
        self._places: list[Place] = []

    def say(
        self, tokens: Sequence[int], parents: Sequence[int] | None, base: int, world: World
    ) -> list[Place]:
        """Append a chain, or the last nodes of the tree at `base`; the place after each token.

        `parents`: those of all nodes from `base` on, None for a chain.
        """
        first = len(self._places)
        for index, token in enumerate(tokens, first):
            before = index - 1
            if parents is not None:
                parent = parents[index - base]
                before = base - 1 if parent < 0 else base + parent
            place = self._places[before] if before >= 0 else Place()
            self._places.append(place.then(token, world))
        return self._places[first:]

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
