"""One ordered, pipelined writer: the script calls of an orchestrator, in call order.

Calls made while a pipeline is under way leave together in the next one. Every
script may be repeated, so after a fault the writer resends from the first call
that got no final answer, in the same order, until the calls' patience ends. What
was too much at once, for the wire or the server, would be so again: after a timeout half as
many calls leave together, and then slowly more.

A call that is refused because the server lost what it had acknowledged may be mended:
another call puts the session back, and the calls of that session go out once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from redis import exceptions

from orchestrator.store.command import Call, tells_loss, tells_torn
from orchestrator.store.delivery import Servers
from orchestrator.store.under_way import UnderWay
from services.contract.errors import StoreError
from services.runtime.outage import Outage
from services.runtime.redis_client import is_away, kind_of, login_refused
from services.runtime.tasks import end

log = logging.getLogger(__name__)

_GATHER_S = 0.005
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# The server is there; the next attempt is another one.
_ELSEWHERE = (exceptions.NoScriptError, exceptions.AskError)
_TOO_MUCH = (TimeoutError, exceptions.TimeoutError, exceptions.OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`patience_s`: how long one call may wait for a server that is away.

    At most `max_pending` calls wait at once; a pipeline holds `max_batch` calls, and
    `max_bytes` unless one call alone has more: it must get through in the time that a
    connection may be silent. A call is answered once `replicas` copied what it wrote.
    """

    patience_s: float = 60.0
    max_batch: int = 256
    max_bytes: int = 4 * 1024 * 1024
    max_pending: int = 10_000
    replicas: int = 0


class Writer:
    """Use from one event loop, between `start` and `close`."""

    def __init__(
        self,
        servers: Servers,
        options: WriterOptions,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_fenced` is for those who decode a refusal to call: another owner has the session."""
        self.servers = servers
        self.options = options
        self.on_fenced, self.under_way = on_fenced, UnderWay()
        self.outage = Outage()
        self._pending: deque[Call] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._at_once = self.options.max_batch

    def start(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="session-writer")

    @property
    def away_s(self) -> float:
        """For how long the server has not taken what waits for it, in seconds."""
        return self.outage.seconds

    def send(self, call: Call) -> asyncio.Future[Any]:
        """Queue a call; its place in the order is taken now."""
        if self._task is None or self._closing or self._task.done():
            call.settle(StoreError("the session store is closed"))
        elif len(self._pending) >= self.options.max_pending:
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
                await self._gather()
                await self._deliver(self._take())
        finally:
            self._fail(self._pending, StoreError("the session store was closed"))

    async def _has_calls(self) -> bool:
        while not self._pending and not self._closing:
            self._wake.clear()
            await self._wake.wait()
        return bool(self._pending)

    async def _gather(self) -> None:
        """Let calls come together, while each turn of the loop brings more."""
        seen, until = 0, time.monotonic() + _GATHER_S
        while seen < len(self._pending) < self.options.max_batch and time.monotonic() < until:
            seen = len(self._pending)
            # Of the next turn, or of the one behind it: who calls has its own place in a turn.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _take(self) -> list[Call]:
        count = min(len(self._pending), self.options.max_batch)
        return [self._pending.popleft() for _ in range(count)]

    async def _deliver(self, calls: list[Call]) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while calls:
                sent, rest = calls[: self._at_once], calls[self._at_once :]
                left, fault = await self._attempt(sent)
                calls = left + rest
                self._adapt(len(sent), fault)
                if fault is None or len(left) < len(sent):
                    pause = _FIRST_PAUSE_S
                if fault is not None:
                    self.outage.begin()
                    calls = await self._recover(calls, fault, pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            self.outage.end()
            # Only a close in the middle leaves any.
            self._fail(calls, StoreError("the session store was closed"))

    def _adapt(self, sent: int, fault: Exception | None) -> None:
        """How many calls leave together from now on."""
        if isinstance(fault, _TOO_MUCH):
            self._at_once = max(1, sent // 2)
        elif fault is None:
            more = max(1, self._at_once // 8)
            self._at_once = min(self._at_once + more, self.options.max_batch)

    async def _attempt(self, calls: list[Call]) -> tuple[list[Call], Exception | None]:
        """Send the calls; those still without a final answer, and why."""
        try:
            replies = await self.servers.execute(calls)
        except Exception as error:
            if is_away(error) or login_refused(error) or isinstance(error, _ELSEWHERE):
                return calls, error
            self._fail(calls, error)
            return [], None
        again: list[Call] = []
        mended: set[str] = set()
        for index, (call, reply) in enumerate(zip(calls, replies, strict=False)):
            if not mended and type(reply) is list and reply[0] == b"ok":
                call.settle(reply)
                continue
            if is_away(reply) or isinstance(reply, _ELSEWHERE):
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

    async def _recover(self, calls: list[Call], fault: Exception, pause: float) -> list[Call]:
        """Make the next attempt likelier to work; drop the calls out of patience."""
        elsewhere = isinstance(fault, _ELSEWHERE)
        if pause == _FIRST_PAUSE_S and not elsewhere:
            log.warning("session store: %s; %d calls wait", kind_of(fault), len(calls))
        if pause > _FIRST_PAUSE_S or not elsewhere:
            await asyncio.sleep(pause)
        try:
            await self.servers.recover(calls[0], fault)
        except Exception as error:
            log.debug("session store: %s after %s", type(error).__name__, type(fault).__name__)
        now = asyncio.get_running_loop().time()
        self._fail([call for call in calls if call.deadline <= now], fault)
        while self._pending and self._pending[0].deadline <= now:
            self._fail([self._pending.popleft()], fault)
        return [call for call in calls if call.deadline > now]

    @staticmethod
    def _fail(calls: Iterable[Call], error: Exception | None) -> None:
        for call in calls:
            call.settle(error or StoreError("the session store gave no answer"))
