"""Draining an orchestrator: after SIGTERM it ends within its grace time.

    not ready, no new calls → streams go on → what is left is handed over → the port closes

Handing over stores that the session has no owner any more, and ends its stream with
UNAVAILABLE: its client resumes it at another orchestrator, at the next token.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from orchestrator.frontdoor.grpc.call_limits import Door
from orchestrator.frontdoor.inference import Inference
from services.runtime.serving import GrpcServer

POLL_SECONDS = 0.05
# Of the grace time, for all that comes after the streams' own.
LAST_SHARE, LONGEST_LAST = 0.4, 8.0


@dataclass(frozen=True, slots=True)
class Grace:
    """The grace time, in seconds, and how it is shared out."""

    seconds: float

    @property
    def streams(self) -> float:
        """For streams to come to their end."""
        return self.seconds - min(LONGEST_LAST, LAST_SHARE * self.seconds)

    @property
    def step(self) -> float:
        """For each of: sessions handed over, calls ended, writes flushed, telemetry flushed."""
        return (self.seconds - self.streams) / 4


async def drain(server: GrpcServer, door: Door, inference: Inference, grace: Grace) -> None:
    """Stop serving; returns when nothing is served any more."""
    await server.set_ready(False)
    door.close()
    inference.stop_compiling()
    ends_at = asyncio.get_running_loop().time() + grace.streams
    # A session that nobody reads is not waited for.
    while door.streams.total and asyncio.get_running_loop().time() < ends_at:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
    await inference.drain(grace.step)
    await server.stop(grace.step)
