"""Waiting for what must happen, however slow the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any

STEP_SECONDS = 0.01


async def until(
    condition: Callable[[], object], seconds: float = 60.0, problem: str = "it did not happen"
) -> None:
    """Wait for a condition, which may have to be awaited."""
    deadline = time.monotonic() + seconds
    while not (await held if isawaitable(held := condition()) else held):
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(STEP_SECONDS)


def wait_until(
    condition: Callable[[], object],
    seconds: float = 60.0,
    problem: Callable[[], object] = lambda: "it did not happen",
) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, problem()
        time.sleep(STEP_SECONDS)


@contextmanager
def skipped_time() -> Iterator[None]:
    """The running loop's clock jumps to the next timer as soon as nothing else is to be done.

    How slow the machine is changes nothing then. Only for tests without threads and sockets: to
    those, hours would have gone by.
    """
    loop: Any = asyncio.get_running_loop()
    select, clock, skipped = loop._selector.select, loop.time, 0.0

    def jump(timeout: float | None) -> list[Any]:
        nonlocal skipped
        events: list[Any] = select(0 if timeout else timeout)
        skipped += 0.0 if events else timeout or 0.0
        return events

    loop._selector.select, loop.time = jump, lambda: clock() + skipped
    try:
        yield
    finally:
        del loop._selector.select, loop.time
