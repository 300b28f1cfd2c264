"""At which places of an output the drafter says what the target says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Agreement:
    """Independent draws with `rate`, other ones in every world, or a list of places.

    `listed`: the places from the first on, in every world; they repeat, or without
    `repeat` draws with `rate` follow them.
    """

    rate: float = 1.0
    seed: int = 0
    listed: tuple[bool, ...] = ()
    repeat: bool = True

    def at(self, world: int, position: int) -> bool:
        """Whether draft and target agree at an output position."""
        if self.listed and (self.repeat or position < len(self.listed)):
            return self.listed[position % len(self.listed)]
        return mixed(self.seed, world, position) < self.rate * (_MASK + 1)


def agreements(accepted: Sequence[int], drafted: int) -> tuple[bool, ...]:
    """The places of a run of synchronous speculation with `drafted` tokens a round.

    `accepted`: tokens emitted by each verification, its own one included. One that
    emitted all it could says nothing of the last place, where nothing was drafted:
    that counts as agreement. Raises ValueError for a number that no such round emits.
    """
    places: list[bool] = []
    for emitted in accepted:
        if not 1 <= emitted <= drafted + 1:
            raise ValueError(f"{emitted} tokens of a round are not 1 to {drafted + 1}")
        places += [True] * (emitted - 1) + [emitted == drafted + 1]
    return tuple(places)


@lru_cache(maxsize=1 << 14)
def mixed(*numbers: int) -> int:
    """64 bits that look random and depend on the numbers alone (splitmix64; Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state
