"""How late an event loop is: the one figure that tells a starved process from a slow worker."""

from __future__ import annotations

import asyncio

from services.common.telemetry import names
from services.common.telemetry.setup import Telemetry

EVERY_SECONDS = 0.1


class LoopLag:
    """Asks the running loop for a call ten times a second, and measures how late it comes."""

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
        self._seconds.record(max(0.0, now - due))
        self._ask(loop, now)
