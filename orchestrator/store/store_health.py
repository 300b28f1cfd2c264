"""Whether Redis is there, for readiness: who cannot store a session takes no new ones.

A process with no session writes nothing, so it asks: every second the server is to
take a write of each kind. What live sessions do meanwhile is the store's own affair.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from services.runtime.serving import Health

log = logging.getLogger(__name__)

ASK_EVERY = 1.0


class Answers(Protocol):
    """A store that can be asked whether it takes writes."""

    def answers(self) -> Awaitable[bool]:
        """Whether it does, within a few seconds. Raises nothing."""


async def watch(store: Answers, health: Health, silence: float) -> None:
    """Until cancelled: while the store was silent for `silence` seconds, nothing is welcome."""
    clock = asyncio.get_running_loop().time
    heard_at, silent = clock(), False
    while True:
        if await store.answers():
            heard_at = clock()
        if silent != (clock() - heard_at > silence):
            silent = not silent
            await health.obstruct(silent)
            _report(silent, silence)
        await asyncio.sleep(ASK_EVERY)


def _report(silent: bool, silence: float) -> None:
    if silent:
        log.warning("Redis takes no writes for %g s: not ready until it does", silence)
    else:
        log.info("Redis takes writes again: ready")
