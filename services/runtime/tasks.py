"""Ending asyncio tasks so that they do end."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_SECONDS = 0.5


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended, however it does.

    A cancellation can be lost on its way: before Python 3.12 `asyncio.wait_for` drops one that
    comes just as it has its result (python/cpython#86296), and a task that loops goes on. So
    it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN_SECONDS)
