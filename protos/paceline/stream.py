"""One generation as the caller holds it: iterate its events, or await the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from paceline._attempts import Attempts
from paceline._sessions import OpenSessions
from paceline.errors import PacelineError, cut_short, typed
from paceline.results import Chunk, Complete, Event, Generation, PromptLogprobs, Started

_T = TypeVar("_T")


class GenerationStream:
    """A generation, which starts when it is first iterated or awaited.

    Iterating yields `Started`, then `PromptLogprobs` if they were asked for, `Chunk`s, and
    `Complete`. Awaiting gives the
    `Generation`, what was iterated before included. A caller that goes away early
    (a cancelled task, a loop broken off, a stream closed) aborts the session; an
    error or a passed deadline does not, and `Client.resume` goes on from there.

    A connection that breaks is a pause, as `Client` says, and no token is lost or
    doubled by it. Raises Internal for a server that leaves tokens out.
    """

    def __init__(self, attempts: Attempts, sessions: OpenSessions) -> None:
        self.session_id = attempts.session_id
        self._seen: list[Event] = []
        # The generator holds nothing of this object: a caller that drops it midway
        # must be noticed at once, not when the cycle collector comes by.
        self._events = _events(attempts, sessions, self._seen)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    def __await__(self) -> Generator[Any, None, Generation]:
        return self.result().__await__()

    async def result(self) -> Generation:
        """Everything to the end, as one record."""
        async with aclosing(self._events) as events:
            async for _ in events:
                pass
        return gather(self.session_id, self._seen)

    async def aclose(self) -> None:
        """Stop here; the session is aborted unless it has ended."""
        await self._events.aclose()

    async def __aenter__(self) -> GenerationStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _events(
    attempts: Attempts, sessions: OpenSessions, seen: list[Event]
) -> AsyncGenerator[Event, None]:
    """The events of one generation, each noted in `seen` before it is given."""
    sessions.begin(attempts.session_id)
    try:
        async with aclosing(calls(attempts)) as told:
            async for event in told:
                seen.append(event)
                yield event
    except (GeneratorExit, asyncio.CancelledError):
        if not attempts.ended:
            sessions.leave(attempts.session_id)
        raise
    finally:
        attempts.cancel()
        sessions.end(attempts.session_id)


async def calls(
    attempts: Attempts, broken: PacelineError | None = None
) -> AsyncGenerator[Event, None]:
    """The events of call after call, until the Complete; `broken`: how an earlier one ended."""
    while not attempts.ended:
        if broken is not None:
            await attempts.recover(broken)
        broken = cut_short()
        try:
            async for message in attempts.open():
                if (event := attempts.take(message)) is not None:
                    yield event
        except grpc.aio.AioRpcError as error:
            broken = typed(error)


def gather(session_id: str, seen: list[Event]) -> Generation:
    """The record of a whole generation's events."""
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
        index=started.index,
        matched_stop=complete.matched_stop,
        logprobs=tuple(row for chunk in chunks for row in chunk.logprobs),
        rounds=tuple(stats for chunk in chunks for stats in chunk.rounds),
        prompt_logprobs=tuple(
            row for event in seen if isinstance(event, PromptLogprobs) for row in event.logprobs
        ),
    )


def _only(kind: type[_T], seen: list[Event]) -> _T:
    for event in seen:
        if isinstance(event, kind):
            return event
    raise cut_short()
