"""An orchestrator that is told to stop: refuses what is new, finishes what it can, hands over."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.draining import Grace, drain
from orchestrator.session.ports import SessionKey
from orchestrator.steering.config import Limits
from services.contract.types import SessionStatus
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import known_front, known_verifier, read, request, stub, text
from tests.waiting import until

# Long enough for a busy machine to say everything within the streams' share.
GRACE = Grace(20.0)


async def ready(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    return answer.status == health_pb2.HealthCheckResponse.SERVING


async def begin(front, seed: int, tokens: int, name: str):
    """A stream, and what it has said so far: its first few tokens."""
    call, said = front.Generate(request(seed, tokens, name)), []
    while len(said) < 5:
        said += (await call.read()).chunk.token_ids
    return call, said


async def test_new_calls_are_refused_while_streams_go_on_and_what_is_left_is_handed_over():
    async with known_front(5.0) as (running, front):
        call, said = await begin(front, 1, 50_000, "long")
        assert await ready(running.address)
        draining = asyncio.create_task(
            drain(running.server, running.door, running.inference, GRACE)
        )
        await until(lambda: running.door.closed)
        assert not await ready(running.address)
        for refused in (
            await read(front.Generate(request(2, 5))),
            await read(front.Resume(pb.ResumeRequest(session_id="long"))),
        ):
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert refused.retry_after > 0
        assert not draining.done()
        told = await front.GetSession(pb.GetSessionRequest(session_id="long"))
        assert told.status == pb.SESSION_STATUS_ACTIVE
        so_far = len(said)
        end = await read(call)
        await draining
        stored = await running.store.get(SessionKey("default", "long"))
        counts = running.inference.active_sessions, running.inference.sessions_of("default")
    assert (end.code, end.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert end.retry_after > 0
    said += end.tokens
    assert len(said) > so_far
    assert said == text(1, len(said))
    # Nothing that was said is missing, nobody holds the session, and it is as it was cut.
    assert (stored.status, stored.lease_until_ms) == (SessionStatus.PAUSED, 0)
    assert list(stored.committed) == text(1, stored.committed_len)
    assert stored.committed_len >= len(said)
    assert counts == (0, 0)


async def test_a_stream_that_ends_within_the_grace_time_ends_as_if_nothing_were():
    async with known_front(5.0) as (running, front):
        call, said = await begin(front, 1, 60, "short")
        began = asyncio.get_running_loop().time()
        draining = asyncio.create_task(
            drain(running.server, running.door, running.inference, Grace(600.0))
        )
        end = await read(call)
        await draining
        took = asyncio.get_running_loop().time() - began
    assert end.complete.finish_reason == pb.FINISH_REASON_LENGTH
    assert said + end.tokens == text(1, 60)
    # It did not wait for the grace time to pass.
    assert took < 300


async def test_a_session_that_nobody_reads_is_handed_over_at_once():
    limits = Limits(detach_grace=500.0)
    async with cluster([await known_verifier(5.0)], [], PATIENT, limits=limits) as running:
        async with stub(running.address) as front:
            call, _ = await begin(front, 1, 50_000, "left")
            call.cancel()
            await until(lambda: not running.door.streams.total)
        assert running.inference.active_sessions == 1
        await asyncio.wait_for(
            drain(running.server, running.door, running.inference, Grace(600.0)), 300
        )
        stored = await running.store.get(SessionKey("default", "left"))
    assert (stored.status, stored.lease_until_ms) == (SessionStatus.PAUSED, 0)


async def test_a_session_that_begins_after_all_were_handed_over_is_handed_over_too():
    async with cluster([await known_verifier(5.0)], [], PATIENT) as running:
        async with stub(running.address) as front:
            await running.inference.drain(0.0)
            end = await read(front.Generate(request(1, 50, "late")))
            assert (end.code, end.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        key = SessionKey("default", "late")
        await until(lambda: not running.inference.active_sessions)
        stored = await running.store.get(key)
    assert (stored.status, stored.lease_until_ms) == (SessionStatus.PAUSED, 0)
