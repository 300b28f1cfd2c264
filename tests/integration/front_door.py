"""The front door of an orchestrator without a client library, which would retry by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from paceline import EMPTY_HASH, extend_hash
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.session.ports import SessionKey
from orchestrator.session.tenants import DEFAULT_TENANT
from tests.integration.cluster import PROMPT, Cluster, cluster
from tests.waiting import until


async def leave_in_the_store(
    running: Cluster, name: str, tokens: Sequence[int], **sampling: Any
) -> SessionKey:
    """A session that an orchestrator began, stored these tokens of, and left."""
    values = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, **sampling}
    asked = incoming(
        pb.GenerateRequest(request_id=name, prompt=PROMPT, sampling=pb.SamplingParams(**values))
    )
    key = SessionKey("default", name)
    spec = await running.inference._resolve(asked, DEFAULT_TENANT)
    await running.store.create(key, running.inference._record(spec))
    await running.store.commit(key, 1, 1, 0, tokens)
    return key


@dataclass
class Reading:
    """One stream as it is read: its tokens, and how it ended."""

    tokens: list[int] = field(default_factory=list)
    status: grpc.StatusCode | None = None
    reason: int | None = None
    task: asyncio.Task[None] | None = None
    call: Any = None

    async def end(self) -> Reading:
        assert self.task is not None
        async with asyncio.timeout(120):
            await self.task
        return self


@dataclass
class FrontDoor:
    """Calls to one orchestrator."""

    stub: Any

    def generate(self, name: str, tokens: int = 40, call: str = "", **sampling: Any) -> Reading:
        values = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **sampling}
        request = pb.GenerateRequest(
            request_id=name, prompt=PROMPT, sampling=pb.SamplingParams(**values)
        )
        return _read(self.stub.Generate(request, metadata=_mine(call)))

    async def under_way(self, tokens: int, said: int = 5, call: str = "") -> Reading:
        """A session "s" of which more than `said` tokens were read."""
        reading = self.generate("s", tokens, call)
        await until(lambda: len(reading.tokens) > said)
        return reading

    def resume(
        self, name: str, offset: int, call: str = "", had: Sequence[int] | None = None
    ) -> Reading:
        """`had`: the tokens whose hash the reader tells."""
        told = None if had is None else extend_hash(EMPTY_HASH, had)
        request = pb.ResumeRequest(session_id=name, offset=offset, prefix_hash=told)
        return _read(self.stub.Resume(request, metadata=_mine(call)))

    async def abort(self, name: str) -> grpc.StatusCode:
        return await _status(self.stub.Abort(pb.AbortRequest(session_id=name)))

    async def stored(self, name: str) -> pb.GetSessionResponse:
        return await self.stub.GetSession(pb.GetSessionRequest(session_id=name))


async def _status(call: Awaitable[object]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _mine(call: str) -> tuple[tuple[str, str], ...]:
    """Which call of which reader this is, if that is told."""
    return (("paceline-call", call),) if call else ()


def _read(call: Any) -> Reading:
    reading = Reading(call=call)

    async def read() -> None:
        try:
            async for event in call:
                reading.tokens += event.chunk.token_ids
                if event.HasField("complete"):
                    reading.reason = event.complete.finish_reason
            reading.status = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            reading.status = error.code()
        except asyncio.CancelledError:
            reading.status = grpc.StatusCode.CANCELLED

    reading.task = asyncio.create_task(read())
    return reading


@asynccontextmanager
async def doors(*clusters: Cluster) -> AsyncIterator[list[FrontDoor]]:
    """One for each orchestrator."""
    channels = [grpc.aio.insecure_channel(cluster.address) for cluster in clusters]
    try:
        yield [FrontDoor(pb_grpc.InferenceServiceStub(channel)) for channel in channels]
    finally:
        for channel in channels:
            await channel.close()


@asynccontextmanager
async def behind_a_door(*given: Any, **options: Any) -> AsyncIterator[tuple[Cluster, FrontDoor]]:
    """A cluster of one orchestrator, and its front door."""
    async with cluster(*given, **options) as running, doors(running) as (door,):
        yield running, door
