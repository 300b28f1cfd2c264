"""One generation as the caller holds it: iterate its events, or await the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from paceline._decode import decode_event
from paceline._sessions import OpenSessions
from paceline.errors import Unavailable, from_rpc
from paceline.results import Chunk, Complete, Event, Generation, Started

_T = TypeVar("_T")


class GenerationStream:
    """A generation, which starts when it is first iterated or awaited.

    Iterating yields `Started`, then `Chunk`s, then `Complete`. Awaiting gives the
    `Generation`, what was iterated before included. A caller that goes away early
    (a cancelled task, a loop broken off, a stream closed) aborts the session; an
    error or a passed deadline does not, and `Client.resume` goes on from there.
    """

    def __init__(
        self, open_call: Callable[[], Any], session_id: str, sessions: OpenSessions
    ) -> None:
        self.session_id = session_id
        self._seen: list[Event] = []
        # The generator holds nothing of this object: a caller that drops it midway
        # must be noticed at once, not when the cycle collector comes by.
        self._events = _events(open_call, session_id, sessions, self._seen)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    def __await__(self) -> Generator[Any, None, Generation]:
        return self.result().__await__()

    async def result(self) -> Generation:
        """Everything to the end, as one record."""
        async with aclosing(self._events) as events:
            async for _ in events:
                pass
        return _gather(self.session_id, self._seen)

    async def aclose(self) -> None:
        """Stop here; the session is aborted unless it has ended."""
        await self._events.aclose()

    async def __aenter__(self) -> GenerationStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _events(
    open_call: Callable[[], Any],
    session_id: str,
    sessions: OpenSessions,
    seen: list[Event],
) -> AsyncGenerator[Event, None]:
    """The events of one call, each noted in `seen` before it is given."""
    call = open_call()
    sessions.begin(session_id)
    try:
        async for message in call:
            if (event := decode_event(message)) is not None:
                seen.append(event)
                yield event
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
    except (GeneratorExit, asyncio.CancelledError):
        call.cancel()
        if not _ended(seen):
            sessions.leave(session_id)
        raise
    finally:
        sessions.end(session_id)
    if not _ended(seen):
        raise _cut_short()


def _ended(seen: list[Event]) -> bool:
    return bool(seen) and isinstance(seen[-1], Complete)


def _gather(session_id: str, seen: list[Event]) -> Generation:
    started, complete = _only(Started, seen), _only(Complete, seen)
    chunks = [event for event in seen if isinstance(event, Chunk)]
    return Generation(
        session_id=session_id,
        text=complete.text,
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=complete.finish_reason,
        usage=complete.usage,
        speculation=complete.speculation,
        seed=started.seed,
        matched_stop=complete.matched_stop,
        logprobs=tuple(row for chunk in chunks for row in chunk.logprobs),
        rounds=tuple(stats for chunk in chunks for stats in chunk.rounds),
    )


def _only(kind: type[_T], seen: list[Event]) -> _T:
    for event in seen:
        if isinstance(event, kind):
            return event
    raise _cut_short()


def _cut_short() -> Unavailable:
    return Unavailable("the stream was cut short", code=grpc.StatusCode.UNAVAILABLE)
