"""For how long the steps of a session are joined before it takes them. Pure.

What a session takes at once costs a commit, a record and a chunk, however many steps it is. While
few sessions stream, that is little, and they take each step as it comes. Where it were more than
`SHARE` of a core, each session's steps are joined for as long as keeps it there, at most `LONGEST`.
"""

from __future__ import annotations

LONGEST = 0.02
"""Seconds."""
SHARE = 0.25
_EVERY = 0.25
_FEWEST = 8
_FIRST_COST = 0.0003
_MEMORY = 0.5


class Rhythm:
    """Measures what it costs that a session takes steps, all that follows included."""

    def __init__(self) -> None:
        self.interval = 0.0
        """Seconds that a session's steps are joined for."""
        self._cost = _FIRST_COST
        self._count = 0
        self._since: tuple[float, float] | None = None
        # The sessions that took steps in this period, and their number in the one before.
        self._streams: set[int] = set()
        self._before = 0

    def took(self, handle: int) -> None:
        """A session took steps."""
        self._count += 1
        self._streams.add(handle)

    def tell(self, now: float, cpu: float) -> None:
        """Sessions took steps until `now`; `cpu`: seconds that this thread has computed in all."""
        if self._since is None:
            self._since = now, cpu
        began, spent = self._since
        if now - began >= _EVERY:
            if self._count >= _FEWEST:
                cost = min(LONGEST, (cpu - spent) / self._count)
                self._cost += (1 - _MEMORY) * (cost - self._cost)
            self._before = len(self._streams)
            self._since, self._count = (now, cpu), 0
            self._streams.clear()
        streams = max(self._before, len(self._streams))
        self.interval = min(LONGEST, self._cost * streams / SHARE)
