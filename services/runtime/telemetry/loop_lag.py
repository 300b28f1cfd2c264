"""How late an event loop is: the one figure that tells a starved process from a slow worker."""

from __future__ import annotations

import asyncio

from services.runtime.telemetry import names
from services.runtime.telemetry.setup import Telemetry

EVERY_SECONDS = 0.1
MOST_MISSED = 600
"""Calls made up for at once: those of a loop that stood still for a minute."""


class LoopLag:
    """Asks the running loop for a call ten times a second, and measures how late it comes.

    A call that comes late stands for those that were due meanwhile: each counts with the
    lag that it would have had. Otherwise a loop that stands still for ten seconds would
    count once, and no percentile would show it.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._seconds = telemetry.histogram(names.LOOP_LAG)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; needs the running loop."""
        loop = asyncio.get_running_loop()
        self._ask(loop, loop.time())

    def stop(self) -> None:
        """Ask no more; may be repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        due = now + EVERY_SECONDS
        self._timer = loop.call_at(due, self._came, loop, due)

    def _came(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        for lag in lags(now - due):
            self._seconds.record(lag)
        self._ask(loop, now)


def lags(late: float) -> list[float]:
    """The lags, in seconds, of a call that came so late and of those it kept from being made."""
    missed = min(MOST_MISSED, max(0, int(late / EVERY_SECONDS)))
    return [max(0.0, late - number * EVERY_SECONDS) for number in range(missed + 1)]
