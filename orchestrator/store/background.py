"""Writes that nobody waits for: durability `relaxed`.

They leave in order and without a gap. What a store that is away cannot take in time is
dropped; the stored text then simply ends there, until one write of all that the owner
remembers closes the gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from orchestrator.store.leases import Lease, Leases
from services.contract.errors import DataLoss, Fenced, SessionAborted

Write = asyncio.Future[Any]
log = logging.getLogger(__name__)

# Writes of one session that may wait for a store that is away.
MOST_WAITING = 64
# Seconds from one attempt to close a gap to the next.
RETRY_EVERY = 1.0


class Background:
    """The unawaited writes of every held session. Belongs to the event loop."""

    def __init__(self, leases: Leases, on_dropped: Callable[[], None]) -> None:
        """`on_dropped` hears of each commit that the store did not take, as it is dropped."""
        self._leases, self._drop = leases, on_dropped
        self._warned = False

    def write(self, held: Lease, send: Callable[[], Write]) -> None:
        """Let a commit leave if it closes up to what the store has.

        If not, it is part of what closes the gap, or it is dropped.
        """
        if held.gone or held.behind:
            if not self.catch_up(held):
                self._drop()
        elif held.waiting >= MOST_WAITING:
            self._fall_behind(held)
        else:
            self._follow(held, send(), self._on_written)

    def end(self, held: Lease, send: Callable[[], Write]) -> None:
        """Let the last write of a session leave, and before it what the store misses."""
        if held.gone:
            return
        if held.behind:
            self._catch_up_now(held)
        self._follow(held, send(), self._on_written)

    def catch_up(self, held: Lease) -> bool:
        """Close the gap; False while writes are under way, or soon after another attempt."""
        now = asyncio.get_running_loop().time()
        if held.waiting or held.gone or now < held.retry_at:
            return False
        held.retry_at = now + RETRY_EVERY
        self._catch_up_now(held)
        return True

    def renewed(self, held: Lease, error: BaseException | None) -> None:
        """A renewal came back: a text that is shorter than it should be is no end."""
        if isinstance(error, DataLoss):
            self._fall_behind(held)
        elif error is not None:
            held.refuse(error)

    def _catch_up_now(self, held: Lease) -> None:
        seed = self._leases.catch_up(held)
        if seed is not None:
            # What is written from now on follows it.
            held.behind = False
            self._follow(held, seed, self._on_caught_up)

    def _follow(
        self,
        held: Lease,
        write: Write,
        then: Callable[[Lease, BaseException | None], None],
    ) -> None:
        held.waiting += 1
        write.add_done_callback(partial(self._settle, held, then))

    def _settle(
        self,
        held: Lease,
        then: Callable[[Lease, BaseException | None], None],
        done: Write,
    ) -> None:
        held.waiting -= 1
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Fenced | SessionAborted):
            held.gone = True
            held.refuse(error)
        else:
            then(held, error)

    def _on_written(self, held: Lease, error: BaseException | None) -> None:
        if error is not None:
            self._fall_behind(held)

    def _on_caught_up(self, held: Lease, error: BaseException | None) -> None:
        if error is None:
            self._warned = False
        else:
            # A session that is gone for good is not created anew.
            held.gone = isinstance(error, DataLoss)
            self._fall_behind(held)

    def _fall_behind(self, held: Lease) -> None:
        held.behind = True
        self._drop()
        if not self._warned:
            self._warned = True
            log.warning("session store: it does not keep up; stored texts end before what is sent")
