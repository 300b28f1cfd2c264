"""What servers and clients of several completions share: ids, seeds, and streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Generic, NamedTuple, TypeVar

MOST_COMPLETIONS = 16
"""Of one request."""

_SEEDS = 1 << 64
_T = TypeVar("_T")


def completion_id(request_id: str, index: int) -> str:
    """The session of one of several completions."""
    return f"{request_id}.{index}"


def completion_seed(seed: int, index: int) -> int:
    """Its seed, from that of the first; `index` may be negative, for the way back."""
    return (seed + index) % _SEEDS


class _Item(NamedTuple, Generic[_T]):
    value: _T


class _End(NamedTuple):
    """A stream is over, or failed."""

    error: Exception | None = None


async def together(streams: Sequence[AsyncIterator[_T]]) -> AsyncGenerator[_T, None]:
    """What all streams give, each in its own order, no faster than it is read.

    Of each stream one value waits, and of all together as many more as there are streams: a slow
    one holds up none. Nor does one that fails: its error is raised when the others have ended.
    """
    ready: asyncio.Queue[_Item[_T] | _End] = asyncio.Queue(maxsize=len(streams))
    pumps = [asyncio.create_task(_pump(stream, ready)) for stream in streams]
    ends: list[_End] = []
    try:
        while len(ends) < len(pumps):
            match await ready.get():
                case _Item(value):
                    yield value
                case _End() as end:
                    ends.append(end)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    for end in ends:
        if end.error is not None:
            raise end.error


async def _pump(stream: AsyncIterator[_T], ready: asyncio.Queue[_Item[_T] | _End]) -> None:
    end = _End()
    try:
        async for value in stream:
            await ready.put(_Item(value))
    except Exception as error:
        end = _End(error)
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()
    await ready.put(end)
