"""Work that Ctrl-C and SIGTERM end cleanly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.runtime.serving import stop_on_signals

T = TypeVar("T")


async def unless_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None if a signal came first, once `work` has cleaned up.

    Raises what `work` raises, also while it cleans up.
    """
    signalled = asyncio.create_task(stop_on_signals().wait())
    task = asyncio.create_task(work)
    await asyncio.wait([signalled, task], return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    return None if task.cancelled() else task.result()
