"""A caller without the library's client: it can leave a call without a word, and come back.

The library aborts what its caller gives up. Here a call is only cancelled, as by a client
that died, and resumed later.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from paceline import Chunk, Complete, Event, Unavailable
from paceline._decode import decode_event
from paceline._request import build_request
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from testkit.chaos.transcript import Case

_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
# A peer that is silent this long is pinged, and gone when no answer comes.
_OPTIONS = [
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.use_local_subchannel_pool", 1),
]
_PASSES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
)


class BareCaller:
    """One session over as many calls as it takes, at each address in turn.

    Messages are made and read as the library does.
    """

    def __init__(
        self,
        addresses: list[str],
        session: str,
        case: Case,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._session = session
        self._request = build_request(case.prompt, None, None, session, case.options)
        self._next = 0
        self._started = False
        self._calls = 0
        self._call: Any = None
        self._away = 0.0

    def leave(self, seconds: float) -> None:
        """Cancel the call, and come back after a while."""
        self._away = seconds
        if self._call is not None:
            self._call.cancel()

    async def events(self) -> AsyncIterator[Event]:
        """The begin, chunks and the end. Raises Unavailable after a minute without a token."""
        last, turn = time.monotonic(), 0
        while True:
            address = self._addresses[turn % len(self._addresses)]
            try:
                async for event in self._one_call(address):
                    last = time.monotonic()
                    yield event
                    if isinstance(event, Complete):
                        return
            except asyncio.CancelledError:
                # A call that `leave` cancelled reads the same; only the task's own end counts.
                if not self._away:
                    raise
            except grpc.aio.AioRpcError as error:
                if error.code() not in _PASSES or time.monotonic() - last > _PATIENCE_SECONDS:
                    raise Unavailable(str(error.details()), code=error.code()) from None
            away, self._away = self._away, 0.0
            await asyncio.sleep(away or _PAUSE_SECONDS)
            last += away
            turn += 1

    async def _one_call(self, address: str) -> AsyncIterator[Event]:
        async with self._channel(address) as channel:
            self._call = self._begin(pb_grpc.InferenceServiceStub(channel))
            async for message in self._call:
                self._started = True
                if (event := decode_event(message)) is not None:
                    if isinstance(event, Chunk):
                        self._next = event.offset + len(event.token_ids)
                    yield event

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        return grpc.aio.secure_channel(address, self._credentials, options=_OPTIONS)

    def _begin(self, stub: Any) -> Any:
        self._calls += 1
        mine = (("paceline-call", f"{self._session}/{self._calls}"),)
        if not self._started:
            return stub.Generate(self._request, metadata=mine)
        request = pb.ResumeRequest(session_id=self._session, offset=self._next)
        return stub.Resume(request, metadata=mine)
