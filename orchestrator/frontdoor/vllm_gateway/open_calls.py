"""Which open call an `Abort` means.

A gateway names a call by the id of its request. smg 1.13.0 sends an `Abort` when its client
leaves, and leaves the call itself open; it sends one after each call that failed, too. Where
several calls have the same id, that one must end no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orchestrator.session.ports import SessionKey

ABORTED_WITHIN = 10.0
"""Seconds after which no `Abort` of a failed call is expected any more."""


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
        self._failed: dict[SessionKey, list[float]] = {}

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
                except Exception:
                    self._note_failure(key)
                    raise
                finally:
                    self._forget(key, call)
        except TimeoutError:
            if not leaving.expired():
                raise

    def abort(self, key: SessionKey) -> None:
        """End the oldest call of an id; none, where one of it has just failed."""
        if self._is_of_failed(key) or not (calls := self._open.get(key)):
            return
        call = calls[0]
        # Another one means the next call.
        self._forget(key, call)
        if call.session is None or not self._end(call.session):
            call.leaving.reschedule(asyncio.get_running_loop().time())

    def _forget(self, key: SessionKey, call: OpenCall) -> None:
        calls = [other for other in self._open.get(key, ()) if other is not call]
        if calls:
            self._open[key] = calls
        else:
            self._open.pop(key, None)

    def _note_failure(self, key: SessionKey) -> None:
        now = self._clock()
        recent = [at for at in self._failed.pop(key, ()) if at >= self._since(now)]
        self._failed[key] = [*recent, now]
        # Those whose last failure is the oldest stand in front.
        while (oldest := next(iter(self._failed))) and self._failed[oldest][-1] < self._since(now):
            del self._failed[oldest]

    def _is_of_failed(self, key: SessionKey) -> bool:
        """Whether an `Abort` is the one that follows a failure."""
        since = self._since(self._clock())
        recent = [at for at in self._failed.pop(key, ()) if at >= since]
        if len(recent) > 1:
            self._failed[key] = recent[1:]
        return bool(recent)

    @staticmethod
    def _since(now: float) -> float:
        return now - ABORTED_WITHIN
