"""`grpc.health.v1` for callers that show no token.

    Check   answers whoever asks at once. Of callers that say no name, the one who has been
            silent longest is sent away where too many are
    Watch   so many at once, of one peer and of all; none of them takes a Check's place

A caller that reads nothing holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from services.contract.errors import NotFound, Overloaded, ProtocolError, StreamStalled
from services.runtime.news import News
from services.runtime.serving.border import border

NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MOST_WATCHES, MOST_OF_A_PEER = 1024, 64
MOST_SILENT, SILENT_SECONDS = 256, 5.0
RETRY_SECONDS = 5.0

_Answer = health_pb2.HealthCheckResponse
_UNKNOWN = _Answer.SERVICE_UNKNOWN


class HealthService:
    """Statuses by name. Belongs to the event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Any] = {}
        self._news = News()
        self._silent: dict[asyncio.Timeout, None] = {}
        self._watches: Counter[str] = Counter()

    def set(self, name: str, status: Any) -> None:
        """Tell those who ask for this name from now on, and those who watch it."""
        self._statuses[name] = status
        self._news.tell()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it there, too."""
        # Of streams: both read their one message for themselves, and not for ever.
        parse, say = health_pb2.HealthCheckRequest.FromString, _Answer.SerializeToString
        handlers = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, parse, say),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, parse, say),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    async def _check(self, _requests: Any, context: Any) -> Any:
        async with border(context):
            status = self._statuses.get(await self._name(context))
            if status is None:
                raise NotFound("service: there is none of this name")
            return _Answer(status=status)

    async def _watch(self, _requests: Any, context: Any) -> None:
        async with border(context):
            name = await self._name(context)
            with self._place(_host_of(context.peer())):
                await self._tell(name, context)

    async def _tell(self, name: str, context: Any) -> None:
        told = None
        while True:
            status = self._statuses.get(name, _UNKNOWN)
            if status == told:
                await self._news.wait()
                continue
            await context.write(_Answer(status=status))
            told = status

    async def _name(self, context: Any) -> str:
        """What a call asks for."""
        try:
            async with asyncio.timeout(SILENT_SECONDS) as patience:
                self._silent[patience] = None
                self._send_one_away()
                asked = await context.read()
        except TimeoutError:
            raise StreamStalled("no request came") from None
        finally:
            self._silent.pop(patience, None)
        if asked is grpc.aio.EOF:
            raise ProtocolError("the call has no request")
        name: str = asked.service
        return name

    def _send_one_away(self) -> None:
        if len(self._silent) > MOST_SILENT:
            longest = next(iter(self._silent))
            del self._silent[longest]
            if not longest.expired():
                longest.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def _place(self, peer: str) -> Iterator[None]:
        """A place for one watch. Raises Overloaded."""
        if self._watches[peer] >= MOST_OF_A_PEER or self._watches.total() >= MOST_WATCHES:
            raise Overloaded("too many watch the health of this process", RETRY_SECONDS)
        self._watches[peer] += 1
        try:
            yield
        finally:
            self._watches[peer] -= 1
            self._watches += Counter()


def _host_of(peer: str) -> str:
    """Of gRPC's name of a peer, that of its machine: without the port."""
    return peer.rpartition(":")[0]
