"""Which open call an `Abort` means.

A gateway names a call by the id of its request, which its client may choose: calls of different
people can have the same. smg 1.13.0 sends an `Abort` when its client leaves, and leaves the call
itself open; it sends one after each call that failed, too. So one can never be told from another's:

    one for each open call of an id    they end
    fewer than that                    they end none: the call that was left goes on to its end
    a call that ended by itself        takes one with it, that came before or comes soon
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orchestrator.session.ports import SessionKey

ABORTED_WITHIN = 10.0
"""Seconds after which no `Abort` of a call that ended is expected any more."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call. Ending it ends its session, or the wait for one; it only leaves one with a name."""

    leaving: asyncio.Timeout
    session: SessionKey | None = None


class OpenCalls:
    """The open calls of one process, by tenant and request id. Belongs to the event loop."""

    def __init__(
        self, end: Callable[[SessionKey], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`end` ends a session that has no name, and says whether there was one."""
        self._end, self._clock = end, clock
        self._open: dict[SessionKey, list[OpenCall]] = {}
        self._aborts: Counter[SessionKey] = Counter()
        """Those that came and ended nobody."""
        self._ended: dict[SessionKey, list[float]] = {}
        """When calls ended whose `Abort` may still come."""

    @asynccontextmanager
    async def enter(self, key: SessionKey) -> AsyncIterator[OpenCall]:
        """For as long as a call is open; its body ends early where it leaves a session.

        Whoever enters says which session without a name it is for.
        """
        try:
            async with asyncio.timeout(None) as leaving:
                call = OpenCall(leaving)
                self._open.setdefault(key, []).append(call)
                try:
                    yield call
                finally:
                    if call in self._open.get(key, ()):
                        self._forget(key, call)
                        self._note_end(key)
        except TimeoutError:
            if not leaving.expired():
                raise

    def abort(self, key: SessionKey) -> None:
        """End the calls of an id, if this is the last of as many as they are."""
        calls = self._open.get(key)
        if self._is_of_ended(key) or not calls:
            return
        self._aborts[key] += 1
        if self._aborts[key] < len(calls):
            return
        del self._open[key], self._aborts[key]
        for call in calls:
            if call.session is None or not self._end(call.session):
                call.leaving.reschedule(asyncio.get_running_loop().time())

    def _forget(self, key: SessionKey, call: OpenCall) -> None:
        self._open[key].remove(call)
        if not self._open[key]:
            del self._open[key]

    def _note_end(self, key: SessionKey) -> None:
        if self._aborts[key]:
            self._aborts[key] -= 1
            self._aborts += Counter()
            return
        now = self._clock()
        recent = [at for at in self._ended.pop(key, ()) if at >= self._since(now)]
        self._ended[key] = [*recent, now]
        # Those whose last end is the oldest stand in front.
        while (oldest := next(iter(self._ended))) and self._ended[oldest][-1] < self._since(now):
            del self._ended[oldest]

    def _is_of_ended(self, key: SessionKey) -> bool:
        """Whether an `Abort` is the one that follows an end."""
        since = self._since(self._clock())
        recent = [at for at in self._ended.pop(key, ()) if at >= since]
        if len(recent) > 1:
            self._ended[key] = recent[1:]
        return bool(recent)

    @staticmethod
    def _since(now: float) -> float:
        return now - ABORTED_WITHIN
