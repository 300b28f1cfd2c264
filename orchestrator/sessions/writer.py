"""One ordered, pipelined writer: every script call of an orchestrator, in call order.

Calls made while a pipeline is under way leave together in the next one. Every
script may be repeated, so after a fault the writer resends from the first call
that got no final answer, in the same order, until the calls' patience ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Redis

from orchestrator.sessions.scripts import NAMES, script
from services.common.errors import PacelineError, StoreError
from services.common.redis_client import is_away

log = logging.getLogger(__name__)

Arg = bytes | str | int
Reply = list[Any]
T = TypeVar("T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`patience_s`: how long one call may wait for a server that is away.

    At most `max_pending` calls wait at once; a pipeline holds `max_batch`.
    """

    patience_s: float = 60.0
    max_batch: int = 256
    max_pending: int = 10_000


@dataclass(frozen=True, slots=True)
class _Call:
    script: str
    keys: Sequence[str]
    args: Sequence[Arg]
    decode: Callable[[Reply], Any]
    deadline: float
    answer: asyncio.Future[Any]

    def settle(self, reply: Any) -> None:
        # The caller may have been cancelled meanwhile; the write stands.
        if self.answer.done():
            return
        try:
            self.answer.set_result(self._decoded(reply))
        except PacelineError as error:
            self.answer.set_exception(error)

    def _decoded(self, reply: Any) -> Any:
        if isinstance(reply, Exception):
            raise _store_error(reply) from reply
        try:
            return self.decode(reply)
        except (LookupError, ValueError, TypeError) as error:
            raise StoreError("the session store holds a malformed record") from error


class Writer:
    """Use from one event loop, between `start` and `close`."""

    def __init__(self, client: Redis, options: WriterOptions | None = None) -> None:
        self._client = client
        self._options = options or WriterOptions()
        self._pending: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="session-writer")

    def call(
        self, name: str, keys: Sequence[str], args: Iterable[Arg], decode: Callable[[Reply], T]
    ) -> asyncio.Future[T]:
        """Queue one script call; its place in the order is taken now.

        `decode` makes the answer of the reply, or raises a PacelineError.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        deadline = loop.time() + self._options.patience_s
        call = _Call(name, keys, tuple(args), decode, deadline, answer)
        if self._task is None or self._closing or self._task.done():
            call.settle(StoreError("the session store is closed"))
        elif len(self._pending) >= self._options.max_pending:
            call.settle(StoreError("too many writes wait for the session store"))
        else:
            self._pending.append(call)
            self._wake.set()
        return answer

    async def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for at most `timeout` seconds, then fail the rest."""
        self._closing = True
        self._wake.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=timeout)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while await self._has_calls():
                await self._deliver(self._take())
        finally:
            self._fail(self._pending, StoreError("the session store was closed"))

    async def _has_calls(self) -> bool:
        while not self._pending and not self._closing:
            self._wake.clear()
            await self._wake.wait()
        return bool(self._pending)

    def _take(self) -> list[_Call]:
        count = min(len(self._pending), self._options.max_batch)
        return [self._pending.popleft() for _ in range(count)]

    async def _deliver(self, calls: list[_Call]) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while calls:
                calls, fault = await self._attempt(calls)
                if calls:
                    calls = await self._recover(calls, fault, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            # Only a close in the middle leaves any.
            self._fail(calls, StoreError("the session store was closed"))

    async def _attempt(self, calls: list[_Call]) -> tuple[list[_Call], Exception | None]:
        """Send the calls; those still without a final answer, and why."""
        try:
            replies = await self._execute(calls)
        except Exception as error:
            if is_away(error):
                return calls, error
            self._fail(calls, error)
            return [], None
        for index, (call, reply) in enumerate(zip(calls, replies, strict=True)):
            if is_away(reply) or isinstance(reply, exceptions.NoScriptError):
                return calls[index:], reply
            call.settle(reply)
        return [], None

    async def _execute(self, calls: list[_Call]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for call in calls:
                sha = script(call.script).sha
                pipeline.evalsha(sha, len(call.keys), *call.keys, *call.args)
            return await pipeline.execute(raise_on_error=False)

    async def _recover(
        self, calls: list[_Call], fault: Exception | None, pause: float
    ) -> list[_Call]:
        """Make the next attempt likelier to work; drop the calls out of patience."""
        if pause == _FIRST_PAUSE_S:
            log.warning("session store: %s; %d calls wait", type(fault).__name__, len(calls))
        if isinstance(fault, exceptions.NoScriptError):
            await self._load_scripts()
        else:
            await asyncio.sleep(pause)
            # After a failover the old connections may lead to a replica.
            with suppress(exceptions.RedisError, OSError):
                await self._client.connection_pool.disconnect(inuse_connections=False)
        now = asyncio.get_running_loop().time()
        self._fail([call for call in calls if call.deadline <= now], fault)
        while self._pending and self._pending[0].deadline <= now:
            self._fail([self._pending.popleft()], fault)
        return [call for call in calls if call.deadline > now]

    async def _load_scripts(self) -> None:
        try:
            await load_scripts(self._client)
        except Exception as error:
            log.warning("session store: scripts not loaded: %s", type(error).__name__)
            await asyncio.sleep(_LONGEST_PAUSE_S)

    @staticmethod
    def _fail(calls: Iterable[_Call], error: Exception | None) -> None:
        for call in calls:
            call.settle(error or StoreError("the session store gave no answer"))


async def load_scripts(client: Redis) -> None:
    """Teach the server every script."""
    async with client.pipeline(transaction=False) as pipeline:
        for name in NAMES:
            pipeline.script_load(script(name).source)
        await pipeline.execute()


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, StoreError):
        return error
    if is_away(error):
        return StoreError(f"the session store does not answer: {type(error).__name__}")
    # A refusal may quote the command, so only its first word goes further.
    return StoreError(f"the session store refused: {type(error).__name__}")
