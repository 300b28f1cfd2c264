"""Several streams of events as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from orchestrator.session.answer import Event

_Item = Event | Exception | None
"""None: a stream is over. An error ends its stream."""


async def together(streams: Sequence[AsyncIterator[Event]]) -> AsyncGenerator[Event]:
    """The events of all streams, in each one's order, no faster than they are read.

    Of each stream one event is ready, and as many more as there are streams: a slow one holds up
    none. One that fails holds up none either: its error is raised when the others have ended.
    """
    ready: asyncio.Queue[_Item] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(stream, ready)) for stream in streams]
    failure: Exception | None = None
    left = len(pumps)
    try:
        while left:
            match await ready.get():
                case None:
                    left -= 1
                case Exception() as error:
                    failure = failure or error
                    left -= 1
                case event:
                    yield event
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    if failure is not None:
        raise failure


async def _pump(stream: AsyncIterator[Event], ready: asyncio.Queue[_Item]) -> None:
    """Put a stream's events, and how it ended."""
    ended: Exception | None = None
    try:
        async for event in stream:
            await ready.put(event)
    except Exception as error:
        ended = error
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    await ready.put(ended)
