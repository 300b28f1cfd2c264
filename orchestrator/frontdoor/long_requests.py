"""Long requests are read in threads, few at a time, so that the event loop goes on.

Reading releases the interpreter as often as it can, but takes memory: a few times the message,
and some hundred bytes for each character of a text that has no place to cut. So the longest have a
queue of their own, which reads two at a time; no other request waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.contract.errors import Overloaded

LONG = 4 * 1024
"""Bytes from which a request is read in a thread: about a millisecond of tokenizing."""
LARGE = 256 * 1024
MOST_WAITING = 64
"""Of each queue, those being read included."""
MOST_WAITING_BYTES = 64 << 20
LARGE_AT_ONCE = 2
LONG_AT_ONCE = 4

T = TypeVar("T")


class RequestThreads:
    """Threads for the requests of one orchestrator. All methods belong to the event loop."""

    def __init__(self) -> None:
        self._long, self._large = _Queue("long", LONG_AT_ONCE), _Queue("large", LARGE_AT_ONCE)

    async def read(self, size: int, act: Callable[[], T]) -> T:
        """Run `act` on a request of `size` bytes: at once if it is short, else in a thread.

        Raises Overloaded when too many wait. A cancelled caller leaves the queue.
        """
        if size < LONG:
            return act()
        return await (self._large if size >= LARGE else self._long).run(size, act)


class _Queue:
    """A few threads, and the requests that wait for one."""

    def __init__(self, name: str, at_once: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, f"{name}-requests")
        self._inside = self._bytes = 0

    async def run(self, size: int, act: Callable[[], T]) -> T:
        if self._inside >= MOST_WAITING or self._bytes + size > MOST_WAITING_BYTES:
            raise Overloaded("too many long prompts wait to be tokenized")
        self._inside += 1
        self._bytes += size
        try:
            # A request that is cancelled while it waits never begins. One that has begun
            # keeps its thread to the end, so the threads bound what is read at a time.
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        finally:
            self._inside -= 1
            self._bytes -= size
