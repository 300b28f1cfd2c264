"""One ordered, pipelined writer: every script call of an orchestrator, in call order.

Calls made while a pipeline is under way leave together in the next one. Every
script may be repeated, so after a fault the writer resends from the first call
that got no final answer, in the same order, until the calls' patience ends.

A call that is refused because the server lost what it had acknowledged may be mended:
another call puts the session back, and the calls of that session go out once more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from redis import exceptions
from redis.asyncio import Redis

from orchestrator.store.command import Arg, Call, Reply, no_mending, tells_loss, tells_torn
from orchestrator.store.outage import Outage
from orchestrator.store.scripts import NAMES, script
from orchestrator.store.server_identity import ServerIdentity
from services.contract.errors import StoreError
from services.runtime.redis_client import FAULTS, is_away
from services.runtime.tasks import end

log = logging.getLogger(__name__)

T = TypeVar("T")
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`patience_s`: how long one call may wait for a server that is away.

    At most `max_pending` calls wait at once; a pipeline holds `max_batch` calls, and
    `max_bytes` unless one call alone has more: it must get through in the time that a
    connection may be silent.
    """

    patience_s: float = 60.0
    max_batch: int = 256
    max_bytes: int = 4 * 1024 * 1024
    max_pending: int = 10_000


class Writer:
    """Use from one event loop, between `start` and `close`."""

    def __init__(
        self,
        client: Redis,
        options: WriterOptions | None = None,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_fenced` is for those who decode a refusal to call: another owner has the session."""
        self._client = client
        self._options = options or WriterOptions()
        self.on_fenced = on_fenced
        self.absence = Outage()
        self._origin = ServerIdentity()
        self._pending: deque[Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="session-writer")

    @property
    def losses(self) -> int:
        """How often the server has shown that it may have lost acknowledged writes."""
        return self._origin.losses

    def prepare(
        self,
        name: str,
        keys: Sequence[str],
        args: Iterable[Arg],
        decode: Callable[[Reply], T],
        mend: Callable[[bool], Call | None] = no_mending,
    ) -> Call:
        """A call that is not queued yet; its patience begins now.

        `decode` makes the answer of the reply, or raises a PacelineError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.patience_s
        return Call(name, keys, tuple(args), decode, deadline, loop.create_future(), mend)

    def send(self, call: Call) -> asyncio.Future[Any]:
        """Queue a call; its place in the order is taken now."""
        if self._task is None or self._closing or self._task.done():
            call.settle(StoreError("the session store is closed"))
        elif len(self._pending) >= self._options.max_pending:
            call.settle(StoreError("too many writes wait for the session store"))
        else:
            self._pending.append(call)
            self._wake.set()
        return call.answer

    async def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for at most `timeout` seconds, then fail the rest."""
        self._closing = True
        self._wake.set()
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=timeout)
        await end(self._task)

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

    def _take(self) -> list[Call]:
        count = min(len(self._pending), self._options.max_batch)
        return [self._pending.popleft() for _ in range(count)]

    async def _deliver(self, calls: list[Call]) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while calls:
                calls, fault = await self._attempt(calls)
                if calls and fault is not None:
                    self.absence.begin()
                    calls = await self._recover(calls, fault, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            self.absence.end()
            # Only a close in the middle leaves any.
            self._fail(calls, StoreError("the session store was closed"))

    async def _attempt(self, calls: list[Call]) -> tuple[list[Call], Exception | None]:
        """Send the calls; those still without a final answer, and why."""
        try:
            replies = await self._execute(calls)
        except Exception as error:
            if is_away(error):
                return calls, error
            self._fail(calls, error)
            return [], None
        again: list[Call] = []
        mended: set[str] = set()
        for index, (call, reply) in enumerate(zip(calls, replies, strict=False)):
            if not mended and type(reply) is list and reply[0] == b"ok":
                call.settle(reply)
                continue
            if is_away(reply) or isinstance(reply, exceptions.NoScriptError):
                return [*again, *calls[index:]], reply
            session = call.keys[0]
            if session not in mended and tells_loss(reply):
                mending = call.mend(tells_torn(reply))
                if mending is not None:
                    mended.add(session)
                    again.append(mending)
            if session in mended:
                again.append(call)
            else:
                call.settle(reply)
        return [*again, *calls[len(replies) :]], None

    async def _execute(self, calls: list[Call]) -> list[Any]:
        """The replies to as many of the first calls as go into one pipeline."""
        # What redis-py's own pipeline does, at a third of its cost per call.
        pipeline = self._pipeline(calls)
        pool: Any = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            async with asyncio.timeout(connection.socket_timeout):
                await self._origin.meet(connection)
                await connection.send_packed_command(b"".join(pipeline))
                replies = [await _reply(connection) for _ in pipeline]
                if any(map(tells_loss, replies)):
                    # A failover need not break the connection.
                    await self._origin.ask(connection)
                return replies
        except BaseException:
            # A reply that comes late must never be taken for that of a later call.
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    def _pipeline(self, calls: list[Call]) -> list[bytes]:
        room, pipeline = self._options.max_bytes, list[bytes]()
        for call in calls:
            packed = call.packed()
            room -= len(packed)
            if room < 0 and pipeline:
                break
            pipeline.append(packed)
        return pipeline

    async def _recover(
        self, calls: list[Call], fault: Exception | None, pause: float
    ) -> list[Call]:
        """Make the next attempt likelier to work; drop the calls out of patience."""
        if pause == _FIRST_PAUSE_S:
            log.warning("session store: %s; %d calls wait", type(fault).__name__, len(calls))
        if isinstance(fault, exceptions.NoScriptError):
            await self._load_scripts()
        else:
            await asyncio.sleep(pause)
            # After a failover the old connections may lead to a replica.
            with suppress(*FAULTS):
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
    def _fail(calls: Iterable[Call], error: Exception | None) -> None:
        for call in calls:
            call.settle(error or StoreError("the session store gave no answer"))


async def _reply(connection: Any) -> Any:
    """The next reply; a refusal is one, too."""
    try:
        # The whole batch has one time limit.
        return await connection.read_response(timeout=math.inf)
    except exceptions.ResponseError as error:
        return error


async def load_scripts(client: Redis) -> None:
    """Teach the server every script."""
    async with client.pipeline(transaction=False) as pipeline:
        for name in NAMES:
            pipeline.script_load(script(name).source)
        await pipeline.execute()
