"""A verifier's step time by its rows, stairs included. Pure.

Kernels work in tiles: on a core with AVX2 six rows took 47 ms and eight 61, while the second
cost 3 and the tenth 4. With a linear model blocks would end just behind a stair, or long before
one. So every row count up to `MOST_ROWS` has a mean of its own, and more rows never take less
time. What a verifier measured before it served (`Told`) fills the gaps, as far as it goes for the
machine as it is now: by its shape, stretched to the steps that were seen. Without it a linear
model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from services.contract.types import StepTime
from services.scheduling.step_time import OUTLIER, StepTimeModel

MOST_ROWS = 32
KEEP = 0.9
"""Discount of earlier steps with as many rows, per step."""
LINE_WEIGHT = 1.0
"""The linear model counts as so many steps of every row count."""
TOLD_WEIGHT = 2.0
"""What was told counts as so many steps of every row count."""
FIRST_RISE = 0.03
"""Prior of what a row adds, as a share of a step of one row."""


class Told(NamedTuple):
    """What verifiers measured before they served; nothing where they did not.

    `curve`: milliseconds of 1, 2, ... `MOST_ROWS` rows, never falling; `line`: the same, linear.
    """

    curve: tuple[float, ...] = ()
    line: StepTimeModel = StepTimeModel()


NOT_TOLD = Told()


@lru_cache(maxsize=16)
def told_by(times: tuple[StepTime, ...]) -> Told:
    """From times by rows, ascending, which may be noisy; of fewer than two nothing follows."""
    if len(times) < 2:
        return NOT_TOLD
    # What else a machine did made some of them longer: no step takes more than a wider one.
    rising = list(accumulate((one.ms for one in reversed(times)), min))[::-1]
    known = [(one.rows, ms) for one, ms in zip(times, rising, strict=True)]
    (first, ms) = known[0]
    offs = [(rows - first, later - ms) for rows, later in known]
    rise = sum(off * more for off, more in offs) / sum(off * off for off, _ in offs)
    line = StepTimeModel(mean_n=float(first), mean_time=ms, slope=rise)
    return Told(tuple([_between(known, rows, rise) for rows in range(1, MOST_ROWS + 1)]), line)


def _between(known: Sequence[tuple[int, float]], rows: int, rise: float) -> float:
    """Linear interpolation of what is known; beyond it each row adds `rise`."""
    below = [one for one in known if one[0] <= rows]
    above = [one for one in known if one[0] >= rows]
    if not below:
        return max(0.1 * known[0][1], known[0][1] - rise * (known[0][0] - rows))
    if not above:
        return below[-1][1] + rise * (rows - below[-1][0])
    (low, left), (high, right) = below[-1], above[0]
    return left + (right - left) * (rows - low) / max(1, high - low)


class Seen(NamedTuple):
    """Discounted steps of one row count, and their mean time."""

    weight: float = 0.0
    ms: float = 0.0


class Steps(NamedTuple):
    """Milliseconds of a step of n rows, all its sessions together."""

    line: StepTimeModel = StepTimeModel()
    seen: tuple[Seen, ...] = (Seen(),) * MOST_ROWS
    told: tuple[float, ...] = ()

    @property
    def known(self) -> bool:
        """Whether there was a step, or was told what one takes."""
        return self.line.weight > 0.0 or bool(self.told)

    def informed(self, told: Told) -> Steps:
        """With what was told in place of what was told before."""
        line = self.line if self.line.weight else told.line
        return Steps(line, self.seen, told.curve) if told.curve else self

    def add(self, rows: int, ms: float) -> Steps:
        """With one more step."""
        line = self.line.add(rows, ms)
        if not 1 <= rows <= MOST_ROWS:
            return Steps(line, self.seen, self.told)
        before = self.seen[rows - 1]
        # The first of its width may have been slow for another reason, as where code was loaded.
        usual = before.ms if before.weight else self._unseen(rows - 1)
        if usual:
            ms = min(ms, OUTLIER * usual)
        weight = KEEP * before.weight + 1.0
        now = Seen(weight, before.ms + (ms - before.ms) / weight)
        return Steps(line, (*self.seen[: rows - 1], now, *self.seen[rows:]), self.told)

    def curve(self) -> tuple[float, ...]:
        """The times of 1, 2, ... `MOST_ROWS` rows, never falling."""
        if not self.told:
            priors = [self._around(place) for place in range(MOST_ROWS)]
            return _rising(self._blended(priors, LINE_WEIGHT, LINE_WEIGHT))
        scale = self.scale
        priors = [scale * ms for ms in self.told]
        # Many counts that were only told do not outweigh one that was seen.
        return _rising(self._blended(priors, TOLD_WEIGHT, TOLD_WEIGHT / MOST_ROWS))

    def _blended(
        self, priors: Sequence[float], weight: float, unseen: float
    ) -> list[tuple[float, float]]:
        """Each row count's time, where its prior counts as `weight` steps, and its weight.

        `unseen`: the weight of a prior beside what other counts say.
        """
        return [
            ((seen.weight * seen.ms + weight * ms) / (seen.weight + weight), seen.weight + unseen)
            for seen, ms in zip(self.seen, priors, strict=True)
        ]

    @property
    def scale(self) -> float:
        """How many times as long as was told steps take: the machine may be busier by now."""
        took, told = TOLD_WEIGHT * self.told[0], TOLD_WEIGHT * self.told[0]
        for seen, ms in zip(self.seen, self.told, strict=True):
            took, told = took + seen.weight * seen.ms, told + seen.weight * ms
        return took / told

    def _unseen(self, place: int) -> float:
        """What a step would take of whose width there was none; 0 = nothing is known."""
        return self.scale * self.told[place] if self.told else self.line.at(place + 1)

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
        return Steps(self.line.capped(weight), seen, self.told)


def _rising(values: list[tuple[float, float]]) -> tuple[float, ...]:
    """The nearest sequence that never falls, by weight (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in values:
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, left, many), (high, right, more) = pools[-2], pools[-1]
            pools[-2:] = [((low * left + high * right) / (left + right), left + right, many + more)]
    return tuple([value for value, _, count in pools for _ in range(count)])
