"""Whether a peer that says nothing is dead: a failure detector for one link. Pure.

1. Silence counts only while this process could listen (`AwakeClock`).
2. No peer is judged right after a stall: pending messages are read first.
3. A peer may be silent for twice the longest of its last gaps, if that is more than
   `silence`, and never for more than `LONGEST` times `silence`: a starved peer gets time,
   and a dead one is found.
4. A peer that was given up and answers at once was not dead: its silence counts as a gap.
   One that comes back later was away: a dead wire says nothing about a live peer's gaps.

Only long gaps inform: messages of a busy peer follow each other at once. Window and bound
adapt as in accrual detectors (Hayashibara et al., 2004), but by the largest gap: a fitted
normal distribution underestimates the gaps of a starved thread.
"""

from __future__ import annotations

from collections import deque
from statistics import median

LONGEST = 3.0
"""The longest allowed silence, in multiples of `silence`, however long a peer's gaps are."""
_MARGIN = 2.0
_GAPS = 64
_AT_ONCE = 0.5
"""Seconds from being given up to being connected again."""
_SHORTEST_GAP = 0.1
"""Seconds; below, a message only follows another."""


class Detector:
    """Watches one peer; all times are seconds of the process's `AwakeClock`."""

    def __init__(self, silence: float) -> None:
        """`silence`: what any peer may be silent for."""
        self._silence = silence
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._heard = self._missed = 0.0
        # When it was given up, and the silence for which it was.
        self._given_up: tuple[float, float] | None = None

    @property
    def limit(self) -> float:
        """Seconds that this peer may be silent for now."""
        usual = _MARGIN * max(self._gaps, default=0.0)
        return min(max(self._silence, usual), LONGEST * self._silence)

    def begin(self, now: float, missed: float) -> None:
        """The peer is connected, for the first time or again."""
        if self._given_up is not None:
            at, silent = self._given_up
            if now - at <= _AT_ONCE:
                self._gaps.append(silent)
            self._given_up = None
        self._heard, self._missed = now, missed

    def hear(self, now: float, missed: float) -> None:
        """A message came; this process has stalled for `missed` seconds in total."""
        gap = now - self._heard
        if gap >= _SHORTEST_GAP:
            self._gaps.append(gap)
        self._heard, self._missed = now, missed

    def silent(self, now: float) -> float:
        """Seconds since the last message."""
        return now - self._heard

    def judge(self, now: float, missed: float) -> str:
        """Why the peer is given up; empty while it is not."""
        silent = self.silent(now)
        if silent <= self.limit:
            return ""
        self._given_up = (now, silent)
        usual = f"usual gap {median(self._gaps):.1f} s, " if self._gaps else ""
        stood = missed - self._missed
        return f"no message for {silent:.1f} s ({usual}this process stood still for {stood:.1f} s)"
