"""Requests that take long to read are read beside the event loop, few at a time.

What reads them keeps the interpreter to itself as little as it can, but takes memory: a text of
4 MiB up to half a gigabyte while it is tokenized. So the longest have a line of their own, in
which two are at work at a time; nobody else waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.contract.errors import Overloaded

LONG = 4 * 1024
"""Bytes of a request from which on it is read in a thread: about a millisecond of tokenizing."""
LARGE = 256 * 1024
MOST_WAITING = 64
"""Of each line, those at work included."""
MOST_WAITING_BYTES = 64 << 20
LARGE_AT_ONCE = 2
LONG_AT_ONCE = 4

T = TypeVar("T")


class Aside:
    """Threads for the requests of one orchestrator. All methods belong to the event loop."""

    def __init__(self) -> None:
        self._long, self._large = _Line("long", LONG_AT_ONCE), _Line("large", LARGE_AT_ONCE)

    async def read(self, size: int, act: Callable[[], T]) -> T:
        """What `act` makes of a request of `size` bytes, here and now if it is short.

        Raises Overloaded where too many wait already. A caller that goes away leaves its place.
        """
        if size < LONG:
            return act()
        return await (self._large if size >= LARGE else self._long).run(size, act)


class _Line:
    """Some threads, and those that wait for one."""

    def __init__(self, name: str, at_once: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, f"{name}-requests")
        self._inside = self._bytes = 0

    async def run(self, size: int, act: Callable[[], T]) -> T:
        if self._inside >= MOST_WAITING or self._bytes + size > MOST_WAITING_BYTES:
            raise Overloaded("too many long prompts wait to be tokenized")
        self._inside += 1
        self._bytes += size
        try:
            # One that is cancelled while it waits is never begun; one that has begun keeps
            # its thread to its end, so that no more than these are ever at work.
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        finally:
            self._inside -= 1
            self._bytes -= size
