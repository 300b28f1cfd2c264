"""A clock of the time in which this process could run: it stops while the event loop stalls.

On an ordinary clock a process that stalled itself (SIGSTOP, a frozen machine, a starved or
blocked loop) would take its silent peers for dead. Pure: the time of a monotonic clock
comes as an argument.
"""

from __future__ import annotations

LATE = 2.0
"""A beat after so many intervals is late: only one interval counts as awake."""


class AwakeClock:
    """Seconds awake, by beats of the event loop `every` so many seconds."""

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        # The last beat, and the seconds awake by then: read together in any thread.
        self._beat = (now, 0.0)
        self.missed = 0.0
        """Seconds that the process stalled, in total."""

    def at(self, now: float) -> float:
        """Seconds awake by `now`; never further than one interval behind the last beat."""
        beat, awake = self._beat
        return awake + min(max(0.0, now - beat), self._every)

    def beat(self, now: float) -> float:
        """The loop runs; how long it stalled since the last beat, 0 = the beat is in time."""
        beat, awake = self._beat
        passed = now - beat
        if passed <= LATE * self._every:
            self._beat = (now, awake + passed)
            return 0.0
        self._beat = (now, awake + self._every)
        self.missed += passed - self._every
        return passed - self._every
