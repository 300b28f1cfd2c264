"""The servers that a client knows: one channel each, and the one in use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import grpc

from paceline._channel import ChannelOptions, Metadata
from paceline.errors import typed
from paceline.v1 import inference_pb2_grpc as pb_grpc

# Answers to a question after which another server may know better.
_ASK_ANOTHER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Server:
    """One address; the channel to it is opened by the first call."""

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        options: ChannelOptions,
        metadata: Metadata,
    ) -> None:
        self._address, self._credentials = address, credentials
        self._options, self._metadata = options, metadata
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None

    def call(self, method: str, request: Any, timeout: float | None, *more: tuple[str, str]) -> Any:
        """Begin a call of InferenceService, with `more` metadata."""
        # Opened here, not in __init__, because a channel belongs to the running loop.
        if self._channel is None:
            self._channel = self._open()
            self._stub = pb_grpc.InferenceServiceStub(self._channel)
        return getattr(self._stub, method)(
            request, timeout=timeout, metadata=(*self._metadata, *more)
        )

    async def close(self) -> None:
        """End the connection, and with it every call."""
        if self._channel is not None:
            await self._channel.close(None)

    def _open(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        return grpc.aio.secure_channel(self._address, self._credentials, options=self._options)


class Servers:
    """Several servers of one cluster. Calls go to the current one until it fails."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = tuple(servers)
        self._current = 0
        self._closed = asyncio.Event()

    @property
    def current(self) -> Server:
        """Where the next call goes; RuntimeError once closed."""
        if self._closed.is_set():
            raise RuntimeError("the client is closed")
        return self._servers[self._current]

    def failed(self, server: Server) -> None:
        """A call to this server broke: if nobody has moved on yet, the next one is current."""
        if self._servers[self._current] is server:
            self._current = (self._current + 1) % len(self._servers)

    async def ask(self, method: str, request: Any, timeout: float) -> Any:
        """The answer to a question that may be put twice, by the first server that gives one.

        Each server gets its share of the time that is left. Raises the last one's error.
        """
        ends = monotonic() + timeout
        for left in range(len(self._servers), 0, -1):
            server = self.current
            try:
                return await server.call(method, request, (ends - monotonic()) / left)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _ASK_ANOTHER or left == 1:
                    raise typed(error) from error
                self.failed(server)
        raise AssertionError("there is always a server")

    async def pause(self, seconds: float) -> None:
        """Wait, though not beyond the end of the client."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)

    async def close(self) -> None:
        """End every connection. Idempotent."""
        self._closed.set()
        for server in self._servers:
            await server.close()
