"""An online linear model of step time over rows. Pure; the standard library alone."""

from __future__ import annotations

from typing import NamedTuple

KEEP = 0.95
"""Discount of earlier steps, per step: about twenty count."""
STIFFNESS = 2.0
FEW_ROWS = 4.0
FIRST_SLOPE = 0.04
OUTLIER = 2.0


class StepTimeModel(NamedTuple):
    """The time of a step of n rows, in any unit: `at(n)` = a + b n, b >= 0.

    Discounted least squares, regularised towards the previous slope: steps that
    are all of one width do not determine b, and leave it unchanged. A step that
    takes several times the expected time counts as twice as long: one stall does
    not mislead, and a change is learned within a few steps. A model of no weight has
    seen no step; what it says may have been told.
    """

    weight: float = 0.0
    mean_n: float = 0.0
    mean_time: float = 0.0
    # Discounted sums of squares and products around the means.
    spread: float = 0.0
    product: float = 0.0
    slope: float = 0.0

    def add(self, n: float, time: float) -> StepTimeModel:
        """The model with one more step."""
        if self.weight == 0.0:
            share = self.slope / self.at(0) if self.mean_time else FIRST_SLOPE
            return StepTimeModel(1.0, n, time, slope=share * time / (1 + share * n))
        time = min(time, OUTLIER * self.at(n))
        weight = KEEP * self.weight + 1.0
        off_n, off_time = n - self.mean_n, time - self.mean_time
        old = KEEP * self.weight / weight
        spread = KEEP * self.spread + old * off_n * off_n
        product = KEEP * self.product + old * off_n * off_time
        stiffness = self._stiffness
        slope = (product + stiffness * self.slope) / (spread + stiffness)
        return StepTimeModel(
            weight,
            self.mean_n + off_n / weight,
            self.mean_time + off_time / weight,
            spread,
            product,
            max(0.0, slope),
        )

    @property
    def _stiffness(self) -> float:
        """Weight of the prior slope: among many rows small differences say little."""
        return STIFFNESS * max(1.0, self.mean_n / FEW_ROWS) ** 2

    @property
    def sure(self) -> bool:
        """Whether observations determine the slope more than the prior does."""
        return self.spread > self._stiffness

    def at(self, n: float) -> float:
        """The time of a step of n rows; never less than a tenth of the mean."""
        return max(self.mean_time + self.slope * (n - self.mean_n), 0.1 * self.mean_time)

    def most_within(self, time: float, most: int) -> int:
        """The widest step, `most` at most, that takes no longer; 0 = none. Unknown: `most`."""
        if not self.weight or self.at(most) <= time:
            return most
        if not self.slope:
            return 0
        return max(0, min(most, int(self.mean_n + (time - self.mean_time) / self.slope)))

    def capped(self, weight: float) -> StepTimeModel:
        """The same model with at most this weight."""
        kept = min(1.0, weight / self.weight) if self.weight else 1.0
        return self._replace(
            weight=kept * self.weight,
            spread=kept * self.spread,
            product=kept * self.product,
        )
