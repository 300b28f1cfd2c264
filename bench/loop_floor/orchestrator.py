"""An orchestrator that forwards frames as they are, commits a step's tokens, then streams them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from redis.asyncio import Redis

from bench.loop_floor.frames import SESSIONS, decode, opening
from bench.loop_floor.worker import LINK

GENERATE = "/paceline.bench.Loop/Generate"
REQUEST = struct.Struct("<III")
"""World, tokens, and 1 where drafts are wanted. A stream of token ids answers it, u32 each."""

_SERVICE, _METHOD = GENERATE[1:].split("/")
_APPEND = "for i = 1, #KEYS do redis.call('APPEND', KEYS[i], ARGV[i]) end"


@dataclass
class _Stream:
    """A session that a client reads; `left`: bytes that are still to come."""

    key: str
    left: int
    chunks: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)


class Orchestrator:
    """Steers the sessions of one verifier and one drafter."""

    def __init__(self, redis: Redis, verifier: grpc.aio.Channel, drafter: grpc.aio.Channel) -> None:
        self._redis = redis
        self._verifier, self._drafter = verifier, drafter
        self._to_verifier: asyncio.Queue[bytes] = asyncio.Queue()
        self._to_drafter: asyncio.Queue[bytes] = asyncio.Queue()
        self._steps: asyncio.Queue[bytes] = asyncio.Queue()
        self._free = list(range(SESSIONS))
        self._streams: dict[int, _Stream] = {}
        self._drafting = self._count = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve clients."""
        method: grpc.RpcMethodHandler[bytes, bytes]
        method = grpc.unary_stream_rpc_method_handler(self._generate)
        handler = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: method})
        server.add_generic_rpc_handlers((handler,))

    async def run(self) -> None:
        """Carry frames until cancelled. Raises what a link, or the store, ends with."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hear_steps())
            tasks.create_task(self._forward_drafts())
            tasks.create_task(self._settle())

    async def _generate(self, request: bytes, _: Any) -> AsyncIterator[bytes]:
        world, tokens, drafts = REQUEST.unpack(request)
        number, session = self._count, self._free.pop()
        self._count += 1
        self._drafting += drafts
        stream = self._streams[session] = _Stream(f"loop:{number}", 4 * tokens)
        opened = opening(session, world, tokens)
        if drafts:
            self._to_drafter.put_nowait(opened)
        self._to_verifier.put_nowait(opened)
        while stream.left:
            chunk = await stream.chunks.get()
            stream.left -= len(chunk)
            yield chunk
        self._drafting -= drafts
        del self._streams[session]
        self._free.append(session)

    async def _hear_steps(self) -> None:
        async for message in _linked(self._verifier, self._to_verifier):
            if self._drafting:
                self._to_drafter.put_nowait(message)
            self._steps.put_nowait(message)

    async def _forward_drafts(self) -> None:
        async for message in _linked(self._drafter, self._to_drafter):
            self._to_verifier.put_nowait(message)

    async def _settle(self) -> None:
        """Commit what the steps so far have said, then stream it."""
        append = await self._redis.script_load(_APPEND)
        while True:
            said = _tokens(await _all(self._steps))
            streams = [self._streams[session] for session in said]
            keys = [stream.key for stream in streams]
            commit = self._redis.evalsha(append, len(keys), *keys, *cast(Any, said.values()))
            await cast(Awaitable[None], commit)
            for stream, chunk in zip(streams, said.values(), strict=True):
                stream.chunks.put_nowait(chunk)


def _linked(channel: grpc.aio.Channel, outbox: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    """What a worker says; it is told what comes into `outbox`."""

    async def told() -> AsyncIterator[bytes]:
        while True:
            yield await outbox.get()

    link: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(LINK)
    return aiter(link(told()))


async def _all(queue: asyncio.Queue[bytes]) -> list[bytes]:
    """What has come, one at least."""
    found = [await queue.get()]
    while not queue.empty():
        found.append(queue.get_nowait())
    return found


def _tokens(messages: list[bytes]) -> dict[int, bytes]:
    """By session, its tokens of some steps, u32 each."""
    said: dict[int, bytes] = {}
    for message in messages:
        _, rows = decode(message)
        each = zip(rows["session"].tolist(), rows["count"].tolist(), rows["tokens"], strict=True)
        for session, count, tokens in each:
            said[session] = said.get(session, b"") + tokens[:count].tobytes()
    return said
