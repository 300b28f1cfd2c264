"""Stored texts are rendered in slices, so that live sessions do not wait.

Detokenizing takes a few microseconds a token in Python, so a long text would block the event
loop for a fifth of a second and more. A slice takes at most `SLICE_S`; everything else has
its turn before the next one.

Reading ended sessions and rounds takes at most `SHARE` of the loop's time. One such text of
a tenant is read and rendered at a time, so that a tenant waits for its own texts only, and who
waits holds none; it may have as many readers as sessions, and others are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from orchestrator.session.tenants import Tenant
from services.contract.errors import Overloaded

T = TypeVar("T")

SLICE_S = 0.002
SHARE = 0.25
RETRY_S = 1.0


class Slices:
    """Runs work a slice at a time, one slice at once, with at most a `share` of the time."""

    def __init__(self, share: float = 1.0) -> None:
        self._rest = 1 / share - 1
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def run(self, steps: Iterable[T | None]) -> list[T]:
        """Take all steps and return their results. What a step raises ends the work."""
        given: list[T] = []
        left = iter(steps)
        while True:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
                if self._slice(left, given):
                    return given

    def _slice(self, steps: Iterator[T | None], given: list[T]) -> bool:
        """Take as many steps as fit a slice; whether none is left."""
        began = time.monotonic()
        try:
            for one in steps:
                if one is not None:
                    given.append(one)
                if time.monotonic() - began >= SLICE_S:
                    return False
            return True
        finally:
            ended = time.monotonic()
            self._free_at = ended + self._rest * (ended - began)


class StoredTexts:
    """The readers of stored texts. All methods belong to the event loop."""

    def __init__(self, most: int) -> None:
        """`most` readers at once of all tenants."""
        self._most = most
        self._slices = Slices(SHARE)
        # Tenants come from a file: no caller can add one.
        self._readers: dict[str, int] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def readers(self) -> int:
        """Readers of all tenants."""
        return sum(self._readers.values())

    @contextmanager
    def reader(self, tenant: Tenant) -> Iterator[None]:
        """Count one more reader in here. Raises Overloaded."""
        own, most = self._readers.get(tenant.name, 0), tenant.limits.max_sessions or self._most
        if own >= most or self.readers >= self._most:
            whose = " of this tenant" if own >= most else ""
            readers = f"{min(most, self._most)} readers{whose} of sessions that have ended"
            raise Overloaded(f"{readers}, or of rounds, are served, which is the limit", RETRY_S)
        self._readers[tenant.name] = own + 1
        try:
            yield
        finally:
            self._readers[tenant.name] -= 1

    def turn(self, tenant: Tenant) -> asyncio.Lock:
        """To be held from the reading of a text to the end of its work."""
        return self._turns.setdefault(tenant.name, asyncio.Lock())

    async def work(self, steps: Iterable[T | None]) -> list[T]:
        """Take all steps, in a tenant's turn, and return their results."""
        return await self._slices.run(steps)
