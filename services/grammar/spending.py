"""What following a response format may take of a session: CPU time, a call at a time.

The limits of llguidance count items and states, and `a: a a | "x"`, a grammar of 30 bytes, takes
time with the cube of its text while it keeps every one of them. So time is limited, too:
so much for each mask and each token, and a reserve for what takes more, which later calls that
take less fill up again. It is the CPU time of the thread that follows, so that a machine that is
busy, or stands still, ends no session.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

LIGHT = 1e-3
"""Seconds: a mask or a token of a usual format takes less, with any vocabulary."""

SLICE = 2e-3
"""Seconds for which a long text is followed at a time."""


class Allowance(NamedTuple):
    """Seconds of CPU: for each mask and each token, and beyond that for all of an output."""

    each: float
    reserve: float


OUTPUTS = Allowance(5e-3, 1.0)
"""Of what is to be told: a session that takes more ends."""
DRAFTS = Allowance(2e-3, 0.1)
"""Of what is drafted: one that takes more is drafted without its format."""


class Weight:
    """Of a format: whether whoever followed it last took more than is usual."""

    def __init__(self) -> None:
        self.heavy = False


class Spending:
    """What one output took so far. `clock`: CPU seconds of the calling thread."""

    def __init__(
        self,
        allowance: Allowance,
        clock: Callable[[], float] = time.thread_time,
        weight: Weight | None = None,
    ) -> None:
        """`weight`: of its format, as far as that is known from others."""
        self.clock = clock
        self._weight = weight or Weight()
        self.heavy = self._weight.heavy
        """Whether its masks and tokens took more than those of usual formats, the last few."""
        self.seconds = 0.0
        self._allowance = allowance
        self._beyond = 0.0
        self._uncounted = 0.0
        """Seconds since the last lap."""
        self._calls = 0

    @property
    def over(self) -> bool:
        """Whether it took more than it may."""
        return self._beyond > self._allowance.reserve

    def add(self, seconds: float, calls: int = 1) -> None:
        """So many more masks or tokens took so long."""
        self.seconds += seconds
        self._uncounted += seconds
        self._calls += calls
        self._beyond = max(0.0, self._beyond + seconds - calls * self._allowance.each)

    def lap(self) -> float:
        """Seconds since the last lap; how heavy it is goes by them."""
        taken, calls = self._uncounted, self._calls
        if calls:
            self.heavy = self._weight.heavy = taken > LIGHT * calls
        self._uncounted, self._calls = 0.0, 0
        return taken
