"""Waiting for what must happen, however slow the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable

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
