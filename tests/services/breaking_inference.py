"""Servers that share their sessions and end their streams where a plan says so."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from paceline import Chunk, Client, Complete, Started
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

SEED = 2**63


def status(code, reason="", retry_after=None, violation=None):
    """A status as our servers send it: a reason, and perhaps when to come back, or a field."""
    made = status_pb2.Status(code=code.value[0], message="said so")
    details = [error_details_pb2.ErrorInfo(reason=reason, domain="paceline")] if reason else []
    if retry_after is not None:
        details.append(error_details_pb2.RetryInfo())
        details[-1].retry_delay.FromMilliseconds(round(retry_after * 1000))
    if violation is not None:
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        made.details.append(packed)
    return made


GONE = status(grpc.StatusCode.UNAVAILABLE)
CUT = "cut"
HANG = "hang"
BREAKS = {
    "gone": GONE,
    "reset": status(grpc.StatusCode.INTERNAL),
    "unknown": status(grpc.StatusCode.UNKNOWN),
    "cancelled": status(grpc.StatusCode.CANCELLED),
    "cut": CUT,
    "no verifier": status(grpc.StatusCode.UNAVAILABLE, "NO_WORKER", retry_after=0.001),
}


class Break(NamedTuple):
    """A stream ends after some messages: by a status, CUT or HANG. `lost`: so is the session."""

    after: int
    how: Any = GONE
    lost: bool = False


@dataclass
class Cluster:
    """What all servers know: the sessions, and how the next streams end."""

    sizes: tuple[int, ...] = (2, 1, 3)
    plan: deque = field(default_factory=deque)
    sessions: set = field(default_factory=set)
    aborted: list = field(default_factory=list)
    asked: list = field(default_factory=list)
    was_aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def count(self):
        return sum(self.sizes)

    @property
    def text(self):
        return "".join(map(piece, range(self.count)))


def piece(index):
    return chr(ord("a") + index % 26)


class BreakingService(pb_grpc.InferenceServiceServicer):
    """One server of a cluster."""

    def __init__(self, cluster, name="only"):
        self.cluster, self.name = cluster, name
        self.requests = []
        self.metadata = []
        self.remaining = []

    async def Generate(self, request, context):
        self._note(request, context)
        ending = self._ending()
        if not (ending and ending.lost):
            self.cluster.sessions.add(request.request_id)
        async for message in self._stream(pb.GenerateResponse, 0, context, ending):
            yield message

    async def Resume(self, request, context):
        self._note(request, context)
        if request.session_id not in self.cluster.sessions:
            await fail(context, status(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"))
        async for message in self._stream(
            pb.ResumeResponse, request.offset, context, self._ending()
        ):
            yield message

    async def Abort(self, request, context):
        self.cluster.aborted.append(request.session_id)
        self.cluster.was_aborted.set()
        return pb.AbortResponse()

    async def GetModelInfo(self, request, context):
        self._note(request, context)
        return pb.GetModelInfoResponse(model=self.name)

    def _note(self, request, context):
        self.requests.append(request)
        self.cluster.asked.append((self.name, request))
        self.metadata.append(dict(context.invocation_metadata()))
        self.remaining.append(context.time_remaining())

    def _ending(self):
        return self.cluster.plan.popleft() if self.cluster.plan else None

    async def _stream(self, kind, offset, context, ending):
        messages = list(self._messages(kind, offset))
        for message in messages[: len(messages) if ending is None else ending.after]:
            yield message
        if ending is None or ending.how is CUT:
            return
        if ending.how is HANG:
            await asyncio.Event().wait()
        await fail(context, ending.how)

    def _messages(self, kind, offset):
        yield kind(started=pb.Started(session_id="s", prompt_tokens=3, seed=SEED))
        yield from (kind(chunk=chunk) for chunk in self.chunks(offset))
        count = self.cluster.count
        usage = pb.Usage(prompt_tokens=3, completion_tokens=count)
        ended = {"finish_reason": pb.FINISH_REASON_LENGTH, "usage": usage}
        yield kind(complete=pb.Complete(text=self.cluster.text, **ended))

    def chunks(self, offset):
        """What follows an offset, in the cluster's sizes."""
        begin = 0
        for size in self.cluster.sizes:
            ids = range(max(begin, offset), begin + size)
            begin += size
            if ids:
                yield pb.Chunk(offset=ids[0], token_ids=ids, text="".join(map(piece, ids)))


async def fail(context, made):
    raised = rpc_status.to_status(made)
    # Without details it is what a transport makes up: a code and a message.
    trailers = raised.trailing_metadata if made.details else ()
    await context.abort(raised.code, raised.details, trailers)


@asynccontextmanager
async def serving(service, credentials=None, port=0):
    """The server and its port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    pb_grpc.add_InferenceServiceServicer_to_server(service, server)
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(None)


def tokens_of(events):
    """Token ids and text of all chunks; fails unless each begins where the last one ended."""
    ids, text = [], ""
    for chunk in events:
        if isinstance(chunk, Chunk):
            assert chunk.offset == len(ids)
            ids += chunk.token_ids
            text += chunk.text
    return ids, text


@asynccontextmanager
async def connected(cluster, names=("only",), **options):
    """A client, and the services that it knows."""
    async with AsyncExitStack() as stack:
        services = [BreakingService(cluster, name) for name in names]
        served = [await stack.enter_async_context(serving(service)) for service in services]
        addresses = [f"127.0.0.1:{port}" for _, port in served]
        client = await stack.enter_async_context(Client(addresses, **options))
        for service, (server, _) in zip(services, served, strict=True):
            service.server = server
        yield client, *services


def assert_whole(events, cluster):
    kinds = [type(event) for event in events]
    assert kinds[0] is Started
    assert kinds[-1] is Complete
    assert set(kinds[1:-1]) == {Chunk}
    assert tokens_of(events) == (list(range(cluster.count)), cluster.text)
