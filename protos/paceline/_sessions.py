"""Which sessions have a caller, and the aborts of those whose caller went away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from paceline.errors import PacelineError


class OpenSessions:
    """The sessions whose streams are open, for one client."""

    def __init__(self, abort: Callable[[str], Awaitable[None]]) -> None:
        self._abort = abort
        self._open: set[str] = set()
        self._aborts: set[asyncio.Task[None]] = set()

    def begin(self, session_id: str) -> None:
        """A stream opened."""
        self._open.add(session_id)

    def end(self, session_id: str) -> None:
        """A stream ended by itself."""
        self._open.discard(session_id)

    def leave(self, session_id: str) -> None:
        """The caller went away: abort the session, without waiting for it."""
        if session_id in self._open:
            self._open.discard(session_id)
            task = asyncio.get_running_loop().create_task(self._abort_quietly(session_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def leave_all(self) -> None:
        """Abort what is open and wait until every abort is sent.

        A loop broken off a moment ago may not have told yet that its caller left.
        """
        for session_id in tuple(self._open):
            self.leave(session_id)
        await asyncio.gather(*self._aborts)

    async def _abort_quietly(self, session_id: str) -> None:
        with suppress(PacelineError):
            await self._abort(session_id)
