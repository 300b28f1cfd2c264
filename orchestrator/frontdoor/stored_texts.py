"""Work on texts that a store kept, beside the sessions at work: much at once, in slices.

Text is made of tokens in Python, a few microseconds each, so that a long one would hold the
event loop up for a fifth of a second and more. A slice takes no longer than `SLICE_S`, and
everything else has its turn before the next one, whoever it is for.

What nobody waits with workers for, reading sessions that have ended and rounds, takes no more
than `SHARE` of the loop's time. Of one tenant one such text is made at a time, so that a
tenant waits for its own; beyond as many readers as it may have sessions it is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from orchestrator.frontdoor.tenants import Tenant
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
        """Take all steps; what they gave. What a step raises ends the work."""
        given: list[T] = []
        left = iter(steps)
        while True:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
                if self._slice(left, given):
                    return given

    def _slice(self, steps: Iterator[T | None], given: list[T]) -> bool:
        """Whether no step is left after as many as go into a slice."""
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
    """Those who read what was kept. All methods belong to the event loop."""

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
        """One reader more while it lasts. Raises Overloaded."""
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

    async def work(self, tenant: Tenant, steps: Iterable[T | None]) -> list[T]:
        """Take all steps for a reader of this tenant; what they gave."""
        async with self._turns.setdefault(tenant.name, asyncio.Lock()):
            return await self._slices.run(steps)
