"""A verifier's step time by its rows, stairs included. Pure.

Kernels work in tiles: on a core with AVX2 six rows took 47 ms and eight 61, while the second
cost 3 and the tenth 4. With a linear model blocks would end just behind a stair, or long before
one. So every row count up to `MOST_ROWS` has a mean of its own, a linear model fills the gaps,
and more rows never take less time.
"""

from __future__ import annotations

from typing import NamedTuple

from services.contract.step_time import OUTLIER, StepTimeModel

MOST_ROWS = 32
KEEP = 0.9
"""Discount of earlier steps with as many rows, per step."""
LINE_WEIGHT = 1.0
"""The linear model counts as so many steps of every row count."""
FIRST_RISE = 0.03
"""Prior of what a row adds, as a share of a step of one row."""


class Seen(NamedTuple):
    """Discounted steps of one row count, and their mean time."""

    weight: float = 0.0
    ms: float = 0.0


class Steps(NamedTuple):
    """Milliseconds of a step of n rows, all its sessions together."""

    line: StepTimeModel = StepTimeModel()
    seen: tuple[Seen, ...] = (Seen(),) * MOST_ROWS

    @property
    def known(self) -> bool:
        """Whether there was a step."""
        return self.line.weight > 0.0

    def add(self, rows: int, ms: float) -> Steps:
        """With one more step."""
        line = self.line.add(rows, ms)
        if not 1 <= rows <= MOST_ROWS:
            return Steps(line, self.seen)
        before = self.seen[rows - 1]
        # The first of its width may have been slow for another reason, as where code was loaded.
        usual = before.ms if before.weight else self.line.at(rows)
        if usual:
            ms = min(ms, OUTLIER * usual)
        weight = KEEP * before.weight + 1.0
        now = Seen(weight, before.ms + (ms - before.ms) / weight)
        return Steps(line, (*self.seen[: rows - 1], now, *self.seen[rows:]))

    def curve(self) -> tuple[float, ...]:
        """The times of 1, 2, ... `MOST_ROWS` rows, never falling."""
        blended = [self._blended(place) for place in range(MOST_ROWS)]
        return _rising(blended)

    def _blended(self, place: int) -> tuple[float, float]:
        """Time and weight of a row count: its own mean, blended with its neighbours'."""
        seen = self.seen[place]
        weight = seen.weight + LINE_WEIGHT
        return (seen.weight * seen.ms + LINE_WEIGHT * self._around(place)) / weight, weight

    def _around(self, place: int) -> float:
        """Linear interpolation between the nearest measured counts; extrapolation beyond."""
        below = next((p for p in range(place - 1, -1, -1) if self.seen[p].weight), None)
        above = next((p for p in range(place + 1, MOST_ROWS) if self.seen[p].weight), None)
        rise = max(self.line.slope, FIRST_RISE * self.line.mean_time / max(1.0, self.line.mean_n))
        if below is None and above is None:
            return self.seen[place].ms or self.line.at(place + 1)
        if below is None:
            assert above is not None
            return max(0.0, self.seen[above].ms - rise * (above - place))
        low = self.seen[below].ms
        if above is None:
            return low + rise * (place - below)
        return low + (self.seen[above].ms - low) * (place - below) / (above - below)

    def capped(self, weight: float) -> Steps:
        """The same times, of limited weight."""
        seen = tuple([one._replace(weight=min(one.weight, weight)) for one in self.seen])
        return Steps(self.line.capped(weight), seen)


def _rising(values: list[tuple[float, float]]) -> tuple[float, ...]:
    """The nearest sequence that never falls, by weight (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in values:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, left, many), (high, right, more) = pools[-2], pools[-1]
            pools[-2:] = [((low * left + high * right) / (left + right), left + right, many + more)]
    return tuple([value for value, _, count in pools for _ in range(count)])
