"""A tenant's messages are read few at a time, slow ones hold up nobody, and none is kept."""

import asyncio
import gc

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor import intake
from orchestrator.frontdoor.grpc import call_limits as door_module
from orchestrator.frontdoor.intake import AT_ONCE
from orchestrator.frontdoor.long_requests import LARGE
from services.runtime.serving.bearer import token_entry
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import bearer, door_of, known_verifier, read, request, stub, text
from tests.waiting import until

ACME, BETA = "token-of-acme-0123456789", "token-of-beta-0123456789"
GENERATE = "/paceline.v1.InferenceService/Generate"
LONG = request(1, 5, prompt="a" * (2 * LARGE))


@pytest.fixture
async def running(tmp_path):
    tenants = {"acme": {"tokens": [token_entry(ACME)]}, "beta": {"tokens": [token_entry(BETA)]}}
    door = door_of(tmp_path, tenants)
    async with cluster([await known_verifier(1.0)], [], PATIENT, door=door) as made:
        yield made


@pytest.fixture
async def channel(running):
    async with grpc.aio.insecure_channel(running.address) as made:
        yield made


async def begun(channel, token: str):
    """A call whose request does not come."""
    call = channel.stream_stream(GENERATE, response_deserializer=pb.GenerateResponse.FromString)(
        metadata=bearer(token)
    )
    await call.wait_for_connection()
    return call


async def as_many_as_are_read(running, channel):
    """Calls of one tenant that send nothing and have all its turns."""
    silent = [await begun(channel, ACME) for _ in range(AT_ONCE)]
    await until(lambda: running.door.streams.total == AT_ONCE)
    return silent


async def test_calls_that_send_no_request_hold_up_no_other_tenant(running, channel, monkeypatch):
    monkeypatch.setattr(intake, "PATIENCE", 600.0)
    silent = await as_many_as_are_read(running, channel)
    async with stub(running.address) as front:
        own = asyncio.ensure_future(read(front.Generate(request(2, 5), metadata=bearer(ACME))))
        await until(lambda: running.door.streams.total == AT_ONCE + 1)
        others = await read(front.Generate(request(1, 5), metadata=bearer(BETA)))
        assert (others.tokens, own.done()) == (text(1, 5), False)
        for call in silent:
            call.cancel()
        assert (await own).tokens == text(2, 5)


async def test_calls_that_send_no_request_hold_up_their_tenant_for_a_moment_only(
    running, channel, monkeypatch
):
    monkeypatch.setattr(intake, "PATIENCE", 0.2)
    silent = await as_many_as_are_read(running, channel)
    async with stub(running.address) as front:
        own = await read(front.Generate(request(2, 5), metadata=bearer(ACME)))
    assert own.tokens == text(2, 5)
    assert not any(call.done() for call in silent)
    for call in silent:
        call.cancel()


async def test_a_request_that_does_not_come_is_not_waited_for_for_ever(channel, monkeypatch):
    monkeypatch.setattr(door_module, "READ_SECONDS", 0.2)
    ended = await read(await begun(channel, ACME))
    assert (ended.code, ended.reason) == (grpc.StatusCode.UNAVAILABLE, "STREAM_STALLED")


async def test_a_call_that_ends_without_a_request_is_refused(channel):
    call = await begun(channel, ACME)
    await call.done_writing()
    ended = await read(call)
    assert (ended.code, ended.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROTOCOL_ERROR")


async def test_a_session_whose_request_was_large_holds_up_no_other(running, monkeypatch):
    monkeypatch.setattr(intake, "PATIENCE", 600.0)
    async with stub(running.address) as front, asyncio.timeout(60):
        for seed in range(AT_ONCE + 1):
            going_on = request(seed, 50_000, prompt="a" * (2 * LARGE))
            await front.Generate(going_on, metadata=bearer(ACME)).read()


async def test_a_request_is_not_kept_while_its_session_goes_on(running, channel):
    raw = request(1, 50_000, prompt="a prompt of this test").SerializeToString()
    call = channel.unary_stream(GENERATE, response_deserializer=pb.GenerateResponse.FromString)(
        raw, metadata=bearer(ACME)
    )
    for _ in range(5):
        await call.read()
    assert running.inference.active_sessions == 1
    kept = [made for made in gc.get_objects() if type(made) is pb.GenerateRequest]
    assert "a prompt of this test" not in [made.prompt for made in kept]
    call.cancel()
