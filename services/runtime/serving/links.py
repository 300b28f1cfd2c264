"""The worker's end of links: one implementation for both roles.

A link opens with a hello that agrees on a protocol version. Commands then go to
the host; events come back, everything that is ready in one message. A peer that
does not read is not read from either. Whatever ends a link (half-close, break,
a message no correct peer sends) frees its sessions, and only those.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import grpc

from services.contract.errors import Overloaded, ProtocolError, VersionMismatch
from services.contract.states import OnStates
from services.contract.types import Draining, LinkHello, Progress, WorkerDescription
from services.contract.wire import Codec
from services.contract.worker_messages import Waiting
from services.runtime.host import BEAT_SECONDS, WorkerHost
from services.runtime.serving.border import border, send_headers
from services.runtime.state_room import StateRoom, portion

logger = logging.getLogger(__name__)

C = TypeVar("C")
E = TypeVar("E")

MAX_OUTGOING = 8192
HELLO_SECONDS = 10.0
READ_SECONDS = 30.0
MOST_STATE_BYTES = 128 << 20
"""States of the target that wait for a peer; beyond them events go without."""
STATE_PORTION = 4 << 20
"""Bytes of states that leave together; what needs none waits for no more than these."""


class Outbox(Generic[E]):
    """Events that wait for one peer, at most `limit` of them.

    Of progress reports, and of who waits, only the newest are kept. Above half the limit no
    more commands are read; above the limit the link ends. The target's states leave in portions.
    """

    def __init__(self, limit: int = MAX_OUTGOING, on_states: OnStates | None = None) -> None:
        """`on_states` is told of states that find no room here."""
        self._limit = limit
        self._states = StateRoom(MOST_STATE_BYTES, on_states)
        self._events: list[E] = []
        self._progress: Progress | None = None
        self._waiting: E | None = None
        self._error: Exception | None = None
        self._closed = False
        self._ready = asyncio.Event()
        self._low = asyncio.Event()
        self._low.set()

    def put(self, events: Sequence[E]) -> None:
        """Take events; the link ends when the peer is too far behind."""
        for event in map(self._states.admit, events):
            if isinstance(event, Waiting):
                self._waiting = event
            elif event is not None:
                self._events.append(event)
        self._ready.set()
        if len(self._events) > self._limit // 2:
            self._low.clear()
        if len(self._events) > self._limit:
            self._events.clear()
            self.close(Overloaded("the peer does not read its link"))

    def report(self, progress: Progress) -> None:
        """Replace the progress report that waits."""
        self._progress = progress
        self._ready.set()

    def close(self, error: Exception | None = None) -> None:
        """End the link once the waiting events are sent. The first error counts."""
        if not self._closed:
            self._closed, self._error = True, error
        self._ready.set()
        self._low.set()

    async def low(self) -> None:
        """Wait until the peer has read enough for more commands."""
        await self._low.wait()

    async def take(self) -> list[Any]:
        """Every event that waits, who waits, and the newest progress.

        Empty when the link ended well; its error is raised when it did not.
        """
        while not (self._events or self._waiting or self._progress or self._closed):
            self._ready.clear()
            await self._ready.wait()
        taken: list[Any] = self._events
        self._events = []
        if self._states.held:
            taken, self._events = portion(taken, STATE_PORTION)
            self._states.release(taken)
        taken += [own for own in (self._waiting, self._progress) if own is not None]
        self._waiting = self._progress = None
        if len(self._events) <= self._limit // 2:
            self._low.set()
        if not taken and self._error is not None:
            raise self._error
        return taken


class LinkServer(Generic[C, E]):
    """All links of one worker. `serve` is the body of the Link RPC."""

    def __init__(
        self,
        host: WorkerHost[C, E],
        description: WorkerDescription,
        codec: Codec[C, E],
        max_outgoing: int = MAX_OUTGOING,
        patience: float = READ_SECONDS,
    ) -> None:
        """`patience`: seconds for which a message may wait to be read."""
        self._host = host
        self._description = description
        self._codec = codec
        self._max_outgoing = max_outgoing
        self._patience = patience
        self._outboxes: set[Outbox[Any]] = set()
        self._draining: Draining | None = None

    async def serve(
        self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """One link, from its hello to its end."""
        async with border(context):
            hello, commands = self._greeted(await _first(requests))
            outbox: Outbox[Any] = Outbox(self._max_outgoing, self._host.on_states)
            link = self._host.open_link(outbox)
            logger.info("link %d from %s is open", link, hello.orchestrator_id)
            reader = asyncio.create_task(self._read(link, requests, outbox, commands))
            try:
                self._welcome(outbox)
                await send_headers(context)
                await self._write(outbox, context)
            finally:
                self._outboxes.discard(outbox)
                reader.cancel()
                self._host.close_link(link)
                logger.info("link %d from %s is closed", link, hello.orchestrator_id)

    async def report_progress(self) -> None:
        """Send every link the host's progress, for ever."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._host.beat()
            for outbox in self._outboxes:
                outbox.report(self._host.progress())

    def drain(self, deadline: float) -> None:
        """Tell every link, open or to come, to move its sessions within `deadline` seconds."""
        self._draining = Draining(int(deadline * 1000))
        for outbox in self._outboxes:
            outbox.put([self._draining])

    def close(self) -> None:
        """End every link."""
        for outbox in self._outboxes:
            outbox.close()

    def _greeted(self, message: Any | None) -> tuple[LinkHello, list[C]]:
        """The hello and the commands of the first message."""
        hello, commands = self._codec.decode_request(message) if message is not None else (None, [])
        if hello is None:
            raise ProtocolError("the first message of a link must hold a hello")
        low, high = self._description.protocol_min, self._description.protocol_max
        if not low <= hello.protocol <= high:
            raise VersionMismatch(
                f"this worker speaks protocol {low} to {high}, the peer {hello.protocol}"
            )
        return hello, commands

    def _welcome(self, outbox: Outbox[Any]) -> None:
        """The first message back tells the peer that the link is open."""
        self._outboxes.add(outbox)
        outbox.report(self._host.progress())
        if self._draining is not None:
            outbox.put([self._draining])

    async def _read(
        self, link: int, requests: AsyncIterator[Any], outbox: Outbox[Any], commands: list[C]
    ) -> None:
        try:
            await self._host.submit(link, commands)
            async for message in requests:
                await outbox.low()
                hello, commands = self._codec.decode_request(message)
                if hello is not None:
                    raise ProtocolError("only the first message of a link may hold a hello")
                await self._host.submit(link, commands)
            outbox.close()
        except Exception as error:
            outbox.close(error)

    async def _write(
        self, outbox: Outbox[Any], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        while events := await outbox.take():
            try:
                async with asyncio.timeout(self._patience):
                    for message in self._codec.responses(events):
                        await context.write(message)
            except TimeoutError:
                raise Overloaded("the peer does not read its link") from None


async def _first(requests: AsyncIterator[Any]) -> Any | None:
    """The first message; None when the stream ends or stays silent."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            return await anext(aiter(requests), None)
    except TimeoutError:
        return None
