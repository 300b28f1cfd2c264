"""A process that steps: a thread of its own keeps the pace, the event loop carries frames."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from queue import SimpleQueue
from typing import Any, Protocol

import grpc

from services.engine.synthetic.pacemaker import Pacemaker

LINK = "/paceline.bench.Worker/Link"
_SERVICE, _METHOD = LINK[1:].split("/")


class Stepper(Protocol):
    """A verifier or a drafter: absorbs messages, steps, says something."""

    @property
    def busy(self) -> bool:
        """Whether there is something to step."""

    def absorb(self, message: bytes) -> None:
        """Take in what came."""

    def begin(self) -> float:
        """A step begins; the seconds that it takes."""

    def end(self) -> bytes | None:
        """It ends; what it said."""


class Worker:
    """Serves one link at a time to a stepper. Needs the running event loop."""

    def __init__(self, stepper: Stepper, pacemaker: Pacemaker) -> None:
        self._stepper, self._pacemaker = stepper, pacemaker
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[bytes] = SimpleQueue()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        threading.Thread(target=self._drive, name="steps", daemon=True).start()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve the link."""
        method: grpc.RpcMethodHandler[bytes, bytes]
        method = grpc.stream_stream_rpc_method_handler(self._link)
        handler = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})
        server.add_generic_rpc_handlers((handler,))

    async def _link(self, messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        hearing = asyncio.create_task(self._hear(messages))
        try:
            while True:
                yield await self._outbox.get()
        finally:
            hearing.cancel()

    async def _hear(self, messages: AsyncIterator[bytes]) -> None:
        async for message in messages:
            self._inbox.put(message)

    def _drive(self) -> None:
        """Absorb, step, say: for ever."""
        while True:
            while not self._stepper.busy:
                self._stepper.absorb(self._inbox.get())
            self._absorb()
            began = self._pacemaker.begin()
            self._pacemaker.until(began + self._stepper.begin())
            self._absorb()
            said = self._stepper.end()
            if said is not None:
                self._loop.call_soon_threadsafe(self._outbox.put_nowait, said)

    def _absorb(self) -> None:
        """All that came."""
        while not self._inbox.empty():
            self._stepper.absorb(self._inbox.get())
