"""Where a drafter is right: for every place of a text, whether its token is the target's own.

That is a property of the place, drawn once: every pacing meets the same text, and a
place that is drafted twice is guessed the same way both times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


class Agreement(Protocol):
    """How texts are drawn."""

    def places(self, count: int, random: Random) -> Sequence[bool]:
        """For each of `count` places, whether the drafter is right there."""


@dataclass(frozen=True, slots=True)
class Independent:
    """Each place by itself is right with chance `rate`."""

    rate: float

    def places(self, count: int, random: Random) -> Sequence[bool]:
        """For each of `count` places, whether the drafter is right there."""
        return [random.random() < self.rate for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Runs:
    """Easy and hard stretches: how likely a place is right depends on the one before.

    `after_hit` and `after_miss` are those chances, a Markov chain of two states.
    """

    after_miss: float
    after_hit: float

    @classmethod
    def bursty(cls, rate: float, length: float) -> Runs:
        """Right with chance `rate` over the long run, in runs of `length` places on average."""
        ends = 1.0 / length
        return cls(min(1.0, ends * rate / (1.0 - rate)) if rate < 1.0 else 1.0, 1.0 - ends)

    @property
    def rate(self) -> float:
        """The share of places that are right."""
        whole = self.after_miss + 1.0 - self.after_hit
        return self.after_miss / whole if whole else 1.0

    def places(self, count: int, random: Random) -> Sequence[bool]:
        """For each of `count` places, whether the drafter is right there."""
        right, found = random.random() < self.rate, []
        for _ in range(count):
            found.append(right)
            right = random.random() < (self.after_hit if right else self.after_miss)
        return found


@dataclass(frozen=True, slots=True)
class Listed:
    """These places; the drafter is right at all beyond."""

    right: tuple[bool, ...]

    def places(self, count: int, random: Random) -> Sequence[bool]:  # noqa: ARG002 - fixed places
        """For each of `count` places, whether the drafter is right there."""
        return [*self.right, *[True] * (count - len(self.right))][:count]
