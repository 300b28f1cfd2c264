"""Time in which this process could run: a clock that stands still while its event loop does.

Who measures the silence of others on a clock that runs on takes them for dead after a pause
of its own: SIGSTOP, a frozen machine, a loop that was starved or blocked. Pure: the time of
a monotonic clock comes as an argument.
"""

from __future__ import annotations

LATE = 2.0
"""A beat that took so many times its interval is late: only the interval counts as awake."""


class AwakeClock:
    """Seconds awake, by beats of the event loop `every` so many seconds."""

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        # The last beat, and the seconds awake by then: read together in any thread.
        self._beat = (now, 0.0)
        self.missed = 0.0
        """Seconds that it stood still, all together."""

    def at(self, now: float) -> float:
        """Seconds awake by `now`; never further than one interval behind the last beat."""
        beat, awake = self._beat
        return awake + min(max(0.0, now - beat), self._every)

    def beat(self, now: float) -> float:
        """The loop runs; how long it stood still since the last beat, 0 = it came in time."""
        beat, awake = self._beat
        passed = now - beat
        if passed <= LATE * self._every:
            self._beat = (now, awake + passed)
            return 0.0
        self._beat = (now, awake + self._every)
        self.missed += passed - self._every
        return passed - self._every
