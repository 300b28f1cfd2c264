"""Messages are read few at a time: of each tenant, and of all.

A message may be megabytes long, and takes several times that while it is parsed and checked.
So a call waits, its message unread, for a slot. It keeps the slot until the message is
checked, or only until it is read if it is short. A message that comes slowly, or takes long to
check, is parked after `PATIENCE` and frees its slot. Parked messages are bounded per tenant,
too: one more, and the oldest that has not arrived is given up. So a client that sends nothing
cannot hold up those that send.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from orchestrator.frontdoor.long_requests import LARGE

AT_ONCE, PARKED = 2, 8
"""Messages of one tenant."""
OF_ALL = 16
PATIENCE = 1.0
"""Seconds until a message is parked."""


class _Queue:
    """The messages of one tenant: whose turn it is, and the parked ones, oldest first."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(AT_ONCE)
        self.parked: dict[MessageSlot, None] = {}


class MessageSlot:
    """Room for the message of one call. Belongs to the event loop."""

    def __init__(self, own: _Queue, turns: tuple[asyncio.Semaphore, ...]) -> None:
        """`turns`: acquired already; the slot releases them once."""
        self._own, self._turns = own, turns
        self._coming: asyncio.Timeout | None = None
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._park)

    @asynccontextmanager
    async def waiting(self, seconds: float) -> AsyncIterator[None]:
        """Wait for the message in here; TimeoutError when it is given up."""
        try:
            async with asyncio.timeout(seconds) as self._coming:
                yield
        finally:
            self._coming = None

    def read(self, size: int) -> None:
        """A message of so many bytes was read."""
        if size < LARGE:
            self.leave()

    def leave(self) -> None:
        """The message was checked, or the call has ended. May be repeated."""
        self._timer.cancel()
        self._own.parked.pop(self, None)
        self._make_room()

    def _park(self) -> None:
        if len(self._own.parked) < PARKED or self._one_given_up():
            self._own.parked[self] = None
            self._make_room()
        else:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._park)

    def _one_given_up(self) -> bool:
        """Give up the oldest parked message that has not arrived; whether there was one."""
        for slot in self._own.parked:
            if slot._coming is not None:
                slot._coming.reschedule(asyncio.get_running_loop().time())
                slot.leave()
                return True
        return False

    def _make_room(self) -> None:
        turns, self._turns = self._turns, ()
        for turn in turns:
            turn.release()


_slot: ContextVar[MessageSlot | None] = ContextVar("slot", default=None)


class Intake:
    """The message slots of one process."""

    def __init__(self) -> None:
        # Tenants come from a file: no caller can add one.
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._all = asyncio.Semaphore(OF_ALL)

    async def enter(self, tenant: str) -> MessageSlot:
        """Wait for a slot, which then belongs to this task; see `vetted`."""
        own = self._queues[tenant]
        await own.turns.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            own.turns.release()
            raise
        slot = MessageSlot(own, (own.turns, self._all))
        _slot.set(slot)
        return slot


def vetted() -> None:
    """The check of this call's message is over: another message may be read."""
    if (slot := _slot.get()) is not None:
        slot.leave()
