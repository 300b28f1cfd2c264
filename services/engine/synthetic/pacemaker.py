"""Making every step of a thread take exactly some time.

Of steps in a row each is a forward and what the thread computes up to the next one, as in
published times of a token: what was computed since the last forward is taken off the next
one, by the thread's own CPU time. After a wait nothing is taken off: what a worker
computes before it waits makes nobody wait for the step after that.

A sleep ends late: by the kernel's timer slack (50 µs a thread, Linux), then by however
long the thread waits for a core. The slack is switched off; what a sleep is late all the
same is taken off the next one, up to `MOST_OWED`, so that steps take their time on average
and a stall of the machine is not made up for.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable

import torch

MOST_OWED = 0.2e-3
"""Seconds."""

A_WAIT = 1e-3
"""Seconds without computing from which a thread has waited for work, not for a core."""

_PR_SET_TIMERSLACK = 29


class Pacemaker:
    """Sleeps; one thread at a time may use it. Times in seconds on `clock`.

    `computed`: CPU time of the thread that asks. `whole_steps` False: what is computed
    around a forward comes on top of its time, always.
    """

    def __init__(
        self,
        *,
        whole_steps: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        computed: Callable[[], float] = time.thread_time,
    ) -> None:
        self._whole_steps = whole_steps
        self._clock, self._sleep, self._computed = clock, sleep, computed
        self._owed = self._ended = self._computed_before = 0.0
        self._thread: int | None = None

    def begin(self) -> float:
        """A forward begins; the moment that its step's time counts from."""
        self._enter()
        now, around = self._clock(), self._computed() - self._computed_before
        in_a_row = self._whole_steps and now - self._ended - around < A_WAIT
        return now - around if in_a_row else now

    def until(self, moment: float) -> None:
        """The forward ends: return at `moment`, at once if it has passed."""
        left = moment - self._owed - self._clock()
        if left > 0.0:
            self._sleep(left)
        self._ended = self._clock()
        self._owed = min(max(0.0, self._ended - moment + self._owed), MOST_OWED)
        self._computed_before = self._computed()

    def _enter(self) -> None:
        """Begin with a thread that is new here: its sleeps become exact.

        And torch's number of threads holds there, which it does from when it is asked for; until
        then MKL takes every core for a logarithm, and its idle threads spin.
        """
        thread = threading.get_ident()
        if thread != self._thread:
            self._thread, self._computed_before = thread, self._computed()
            without_timer_slack()
            torch.get_num_threads()


def without_timer_slack() -> None:
    """Let sleeps of this thread end within microseconds, where the system can (Linux)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
