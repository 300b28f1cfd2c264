"""Several completions of one prompt as the caller holds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from paceline._attempts import Attempts, Limits
from paceline._decode import decode_event
from paceline._progress import fault
from paceline._servers import Servers
from paceline._sessions import OpenSessions
from paceline.errors import PacelineError, cut_short, typed
from paceline.results import Event, Generation, Started
from paceline.stream import calls, gather
from paceline.together import completion_id, completion_seed, together
from paceline.v1 import inference_pb2 as pb


class Completions:
    """Completions of one prompt, which start when this is first iterated or awaited.

    Iterating yields the events of all, each with its `index`: of each completion a `Started`,
    `Chunk`s, and a `Complete`. Awaiting gives their `Generation`s by index. `session_ids` are
    those to `Client.resume`, or abort, one alone; `request_id` aborts all. The rest is as
    `GenerationStream` says: what breaks is a pause, and a caller that goes away aborts what has
    not ended. Where one completion fails, the others go on to their ends before it is raised.
    """

    def __init__(
        self, servers: Servers, request: pb.GenerateRequest, limits: Limits, sessions: OpenSessions
    ) -> None:
        self.request_id, count = request.request_id, request.n
        alone = [_alone(request, index) for index in range(count)]
        self.session_ids = tuple(one.request_id for one in alone)
        self._seen: tuple[list[Event], ...] = tuple([] for _ in alone)
        parts = [Attempts(servers, one, *limits) for one in alone]
        first = Attempts(servers, request, *limits)
        self._events = _events(first, parts, sessions, self._seen)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    def __await__(self) -> Generator[Any, None, tuple[Generation, ...]]:
        return self.result().__await__()

    async def result(self) -> tuple[Generation, ...]:
        """Everything to the end, a record for each."""
        async with aclosing(self._events) as events:
            async for _ in events:
                pass
        pairs = zip(self.session_ids, self._seen, strict=True)
        return tuple(gather(session_id, seen) for session_id, seen in pairs)

    async def aclose(self) -> None:
        """Stop here; what has not ended is aborted."""
        await self._events.aclose()

    async def __aenter__(self) -> Completions:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _alone(request: pb.GenerateRequest, index: int) -> pb.GenerateRequest:
    """A single request for one of the completions; it lacks its seed."""
    alone = pb.GenerateRequest()
    alone.CopyFrom(request)
    alone.ClearField("n")
    if request.n > 1:
        alone.request_id = completion_id(request.request_id, index)
    return alone


async def _events(
    first: Attempts,
    parts: Sequence[Attempts],
    sessions: OpenSessions,
    seen: Sequence[list[Event]],
) -> AsyncGenerator[Event, None]:
    """The events of all completions: of one call, and once that broke of a call for each."""
    open_ids = [first.session_id]
    sessions.begin(first.session_id)
    try:
        broken: PacelineError | None = None
        async with aclosing(_of_one_call(first, parts)) as told:
            async for event in told:
                if isinstance(event, PacelineError):
                    broken = event
                    break
                seen[event.index].append(event)
                yield event
        if broken is not None:
            left = [(index, part) for index, part in enumerate(parts) if not part.ended]
            open_ids += [part.session_id for _, part in left]
            for session_id in open_ids:
                sessions.begin(session_id)
            streams = [_numbered(calls(part, broken), index) for index, part in left]
            async with aclosing(together(streams)) as rest:
                async for event in rest:
                    seen[event.index].append(event)
                    yield event
    except (GeneratorExit, asyncio.CancelledError):
        if not all(part.ended for part in parts):
            for session_id in open_ids:
                sessions.leave(session_id)
        raise
    finally:
        for attempts in (first, *parts):
            attempts.cancel()
        for session_id in open_ids:
            sessions.end(session_id)


async def _of_one_call(
    first: Attempts, parts: Sequence[Attempts]
) -> AsyncGenerator[Event | PacelineError, None]:
    """The events of one call for all, repeated until it is answered; then what broke it."""
    while not all(part.ended for part in parts):
        broken: PacelineError = cut_short()
        begun = False
        try:
            async for message in first.open():
                if (event := decode_event(message)) is None:
                    continue
                if not event.index < len(parts):
                    raise fault(f"completion {event.index} of {len(parts)} came")
                if isinstance(event, Started):
                    begun = True
                    _begin(first, parts, event)
                if (new := parts[event.index].take_event(event)) is not None:
                    yield new
        except grpc.aio.AioRpcError as error:
            broken = typed(error)
        if begun:
            if not all(part.ended for part in parts):
                yield broken
            return
        await first.recover(broken)


def _begin(first: Attempts, parts: Sequence[Attempts], started: Started) -> None:
    """One session exists, so all do; each can be resumed, or begun again with its seed."""
    for index, part in enumerate(parts):
        part.begun(completion_seed(started.seed, index - started.index), first)


async def _numbered(events: AsyncIterator[Event], index: int) -> AsyncGenerator[Event, None]:
    async for event in events:
        yield replace(event, index=index)
