"""Messages are read few at a time: of each tenant, and of all.

A message may be megabytes long, and while it is parsed and looked at it takes several times
that. So a call waits at the door, its message unread, until it has a place; it has it until
the message was vetted, and a short one until it is read. A message that comes slowly, or is
looked at for long, stands aside after a while and makes room for the next one. For so many of
a tenant there is room aside, too; one more, and the first that has not come is given up. So
nobody who sends nothing holds up those who send.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from orchestrator.frontdoor.long_requests import LARGE

AT_ONCE, ASIDE = 2, 8
"""Messages of one tenant."""
OF_ALL = 16
PATIENCE = 1.0
"""Seconds until a message stands aside."""


class _Line:
    """The messages of one tenant: whose turn it is, and those aside, in the order they went."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(AT_ONCE)
        self.aside: dict[MessageSlot, None] = {}


class MessageSlot:
    """Room for the message of one call. Belongs to the event loop."""

    def __init__(self, own: _Line, turns: tuple[asyncio.Semaphore, ...]) -> None:
        """`turns`: held for it, and released once."""
        self._own, self._turns = own, turns
        self._coming: asyncio.Timeout | None = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._stand_aside)

    @asynccontextmanager
    async def waiting(self, seconds: float) -> AsyncIterator[None]:
        """Around the wait for the message; TimeoutError when it is given up."""
        try:
            async with asyncio.timeout(seconds) as self._coming:
                yield
        finally:
            self._coming = None

    def read(self, size: int) -> None:
        """A message of so many bytes is there."""
        if size < LARGE:
            self.leave()

    def leave(self) -> None:
        """The message was vetted, or the call has ended. May be repeated."""
        self._timer.cancel()
        self._own.aside.pop(self, None)
        self._make_room()

    def _stand_aside(self) -> None:
        if len(self._own.aside) < ASIDE or self._one_given_up():
            self._own.aside[self] = None
            self._make_room()
        else:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._stand_aside)

    def _one_given_up(self) -> bool:
        """Whether one of those aside, whose message has not come, is no longer waited for."""
        for place in self._own.aside:
            if place._coming is not None:
                place._coming.reschedule(asyncio.get_running_loop().time())
                place.leave()
                return True
        return False

    def _make_room(self) -> None:
        turns, self._turns = self._turns, ()
        for turn in turns:
            turn.release()


_place: ContextVar[MessageSlot | None] = ContextVar("place", default=None)


class Intake:
    """The places of one process."""

    def __init__(self) -> None:
        # Tenants come from a file: no caller can add one.
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._all = asyncio.Semaphore(OF_ALL)

    async def enter(self, tenant: str) -> MessageSlot:
        """Wait for a place, which is this task's from then on; see `vetted`."""
        own = self._lines[tenant]
        await own.turns.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            own.turns.release()
            raise
        place = MessageSlot(own, (own.turns, self._all))
        _place.set(place)
        return place


def vetted() -> None:
    """Nothing of this call's message is looked at any more: another may be read."""
    if (place := _place.get()) is not None:
        place.leave()
