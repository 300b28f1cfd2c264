"""Bytes of sessions that may be read at once: of each tenant, and of all.

How long a session is, its client chooses. So a read waits until there is room for it, behind
those of its tenant; what is larger than the room of a tenant is read when it has all of that.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

OF_TENANT, OF_ALL = 4 << 20, 16 << 20


class _Bytes:
    """So many; given in the order of asking."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            self._serve()
            raise

    def give_back(self, size: int) -> None:
        self._left += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if size > self._left:
                    return
                self._left -= size
                turn.set_result(None)
            self._waiting.popleft()


class Room:
    """Belongs to the event loop."""

    def __init__(self, of_tenant: int = OF_TENANT, of_all: int = OF_ALL) -> None:
        self._most = of_tenant
        # Tenants come from a file: no caller can add one.
        self._tenants: defaultdict[str, _Bytes] = defaultdict(lambda: _Bytes(of_tenant))
        self._all = _Bytes(of_all)

    @asynccontextmanager
    async def take(self, tenant: str, size: int) -> AsyncIterator[None]:
        """Wait for room for so many bytes, and have it in here."""
        own, size = self._tenants[tenant], min(size, self._most)
        await own.take(size)
        try:
            await self._all.take(size)
            try:
                yield
            finally:
                self._all.give_back(size)
        finally:
            own.give_back(size)
