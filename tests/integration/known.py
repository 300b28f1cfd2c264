"""Workers whose text is known beforehand, and plain gRPC calls that show statuses as they are."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from orchestrator.frontdoor.authentication import TokensFile
from orchestrator.frontdoor.grpc.call_limits import Door
from services.drafter.hypotheses import HypothesisCore
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from testkit.known_runner import KnownRunner
from testkit.known_text import KnownDrafter, bundle, truth
from testkit.known_verifier import KnownVerifier
from tests.integration.cluster import (
    PATIENT,
    PROTOCOL,
    Cluster,
    Worker,
    cluster,
    serve,
    start_core,
)

KNOWN: Any = KnownVerifier if PROTOCOL == 1 else KnownRunner
"""The core of a verifier of known text, of the protocol that is spoken."""


async def known_verifier(step_ms: float = 0.0) -> Worker:
    """Says `truth(seed, position)` at each place, a step of `step_ms` for all sessions."""
    host: WorkerHost[Any, Any] = WorkerHost(lambda emit: KNOWN(emit, "v1", step_ms))
    return await serve(Served(host, host.describe(), bundle()))


async def known_drafter(chunk: int = 8) -> Worker:
    """Always right, `chunk` tokens at a time."""
    return await start_core(HypothesisCore, {"known": KnownDrafter(1.0, chunk, 0.0)}, "d1")


def text(seed: int, tokens: int, first: int = 0) -> list[int]:
    """What a session of this seed says, from a place on."""
    return [truth(seed, place) for place in range(first, tokens)]


def request(seed: int, tokens: int, request_id: str = "", prompt: str = "ab") -> pb.GenerateRequest:
    """Greedy, of known text."""
    sampling = pb.SamplingParams(temperature=0.0, seed=seed, max_tokens=tokens, ignore_eos=True)
    asked = pb.GenerateRequest(prompt=prompt, sampling=sampling)
    if request_id:
        asked.request_id = request_id
    return asked


def door_of(folder: Path, tenants: dict[str, Any]) -> Door:
    """Asks who calls, and knows these."""
    path = folder / "tokens.json"
    path.write_text(json.dumps({"tenants": tenants}))
    return Door(TokensFile(path), 1000)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The header that carries a token."""
    return (("authorization", f"Bearer {token}"),)


@asynccontextmanager
async def stub(
    address: str, options: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[pb_grpc.InferenceServiceStub]:
    """The generated client, on a connection of its own."""
    # A pool of its own: channels of one target share their connections otherwise.
    alone = [*options, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=alone) as channel:
        yield pb_grpc.InferenceServiceStub(channel)


@asynccontextmanager
async def known_front(
    step_ms: float = 0.0, **options: Any
) -> AsyncIterator[tuple[Cluster, pb_grpc.InferenceServiceStub]]:
    """A cluster with one verifier of known text, and its front door."""
    made = cluster([await known_verifier(step_ms)], [], PATIENT, **options)
    async with made as running, stub(running.address) as front:
        yield running, front


@dataclass
class Ended:
    """What one stream brought, and how it ended; `code` None = with `complete`."""

    tokens: list[int] = field(default_factory=list)
    complete: pb.Complete | None = None
    code: grpc.StatusCode | None = None
    message: str = ""
    reason: str = ""
    retry_after: float | None = None

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError, tokens: Sequence[int] = ()) -> Ended:
        """From a status."""
        ended = cls(list(tokens), code=error.code(), message=error.details() or "")
        status = rpc_status.from_call(error)
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        for detail in status.details if status is not None else ():
            if detail.Unpack(info):
                ended.reason = info.reason
            if detail.Unpack(retry):
                ended.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
        return ended


async def read(call: Any) -> Ended:
    """A stream to its end."""
    tokens: list[int] = []
    first: int | None = None
    try:
        while (event := await call.read()) is not grpc.aio.EOF:
            if event.HasField("chunk"):
                first = event.chunk.offset if first is None else first
                assert event.chunk.offset == first + len(tokens)
                tokens += event.chunk.token_ids
            if event.HasField("complete"):
                return Ended(tokens, event.complete)
    except grpc.aio.AioRpcError as error:
        return Ended.of(error, tokens)
    raise AssertionError("the stream ended without a word")


async def refused(call: Any) -> Ended:
    """A unary call that is refused."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Ended.of(error)
    raise AssertionError("the call was answered")
