"""An event loop on virtual time: where nothing is ready, the clock jumps to the next timer.

Every callback has an owner, a context variable that tasks and timers inherit: its CPU time is
counted for that owner, and what a dead owner planned never runs, as in a process that was
killed.
"""

import asyncio
import heapq
import time
from collections import defaultdict
from contextvars import Context, ContextVar, copy_context
from typing import Any

OWNER: ContextVar[str] = ContextVar("owner", default="")
_FEW_CANCELLED = 1000


def context_of(owner: str) -> Context:
    """A context whose callbacks count as the owner's."""
    context = copy_context()
    context.run(OWNER.set, owner)
    return context


class VirtualLoop(asyncio.BaseEventLoop):
    """Callbacks of one moment run in the order they were planned. It waits for no file or thread.

    `cpu`: seconds of this thread's CPU by owner; `dead`: owners whose callbacks are dropped.
    """

    # Of the loop that is extended; typeshed does not have them.
    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: Any

    def __init__(self) -> None:
        super().__init__()
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self.dead: set[str] = set()
        self._now = 0.0

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def _run_once(self) -> None:
        self._purge()
        if not self._ready:
            self._jump()
        while self._scheduled and self._scheduled[0]._when <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._ready.append(timer)
        last = time.thread_time()
        for _ in range(len(self._ready)):
            handle: Any = self._ready.popleft()
            if handle._cancelled:
                continue
            owner = handle._context.get(OWNER, "")
            if owner in self.dead:
                continue
            handle._run()
            now = time.thread_time()
            self.cpu[owner] += now - last
            last = now

    def _jump(self) -> None:
        """To the next timer that stands."""
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._scheduled:
            raise RuntimeError("nothing is planned, and the simulation is not over")
        self._now = max(self._now, self._scheduled[0]._when)

    def _purge(self) -> None:
        """Forget cancelled timers, once they are many."""
        cancelled = self._timer_cancelled_count
        if cancelled > _FEW_CANCELLED and 2 * cancelled > len(self._scheduled):
            for timer in self._scheduled:
                if timer._cancelled:
                    timer._scheduled = False
            self._scheduled = [timer for timer in self._scheduled if not timer._cancelled]
            heapq.heapify(self._scheduled)
            self._timer_cancelled_count = 0

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""
