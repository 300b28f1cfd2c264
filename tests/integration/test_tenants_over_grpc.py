"""Nobody without a token, and no tenant in another's sessions or beyond its own limits."""

import asyncio
import logging

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from services.runtime.serving.bearer import token_entry
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import (
    bearer,
    door_of,
    known_front,
    known_verifier,
    read,
    refused,
    request,
    stub,
    text,
)

ACME, BETA = "token-of-acme-0123456789", "token-of-beta-0123456789"
PROMPT = "averysecretprompt"
TENANTS = {
    "acme": {"tokens": [token_entry(ACME)], "max_sessions": 2, "max_tokens": 100_000},
    "beta": {"tokens": [token_entry(BETA)], "max_tokens_in_flight": 1000},
}
STREAMS = {"Generate", "Resume"}
METHODS = {
    method.name: pb.__dict__[method.input_type.name]
    for method in pb.DESCRIPTOR.services_by_name["InferenceService"].methods
}
ATTEMPTS = 100


@pytest.fixture
def door(tmp_path):
    return door_of(tmp_path, TENANTS)


@pytest.fixture
async def running(door):
    async with cluster([await known_verifier(1.0)], [], PATIENT, door=door) as made:
        yield made


async def calls(front, name: str, message, metadata=()):
    call = getattr(front, name)(message, metadata=metadata)
    return await (read(call) if name in STREAMS else refused(call))


async def two_of_acme(front):
    """As many calls as it may have, which have begun."""
    asked = [request(seed, 50_000, f"held{seed}") for seed in (1, 2)]
    held = [front.Generate(one, metadata=bearer(ACME)) for one in asked]
    for call in held:
        await call.read()
    return held


@pytest.mark.parametrize("name", METHODS)
async def test_no_method_answers_without_a_token_or_with_a_wrong_one(running, name):
    async with stub(running.address) as front:
        message = METHODS[name]()
        ends = [await calls(front, name, message, metadata) for metadata in ((), bearer("wrong"))]
    assert [end.code for end in ends] == [grpc.StatusCode.UNAUTHENTICATED] * 2
    assert ends[0] == ends[1]
    assert not running.inference.active_sessions


async def test_a_hundred_attempts_of_each_kind_are_refused_and_none_is_logged(running, caplog):
    caplog.set_level(logging.DEBUG)
    kinds = {"no token": (), "wrong token": bearer("wrong-" + ACME), "other tenant": bearer(BETA)}
    async with stub(running.address) as front:
        own = front.Generate(request(7, 5, "mine", PROMPT), metadata=bearer(ACME))
        assert (await read(own)).tokens == text(7, 5)
        ends = {
            kind: await asyncio.gather(
                *(_attempt(front, index, metadata) for index in range(ATTEMPTS))
            )
            for kind, metadata in kinds.items()
        }
    expected = dict.fromkeys(("no token", "wrong token"), grpc.StatusCode.UNAUTHENTICATED)
    for kind, code in (expected | {"other tenant": grpc.StatusCode.NOT_FOUND}).items():
        assert {end.code for end in ends[kind]} == {code}, kind
    logged = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    for secret in (ACME, BETA, PROMPT):
        assert secret not in logged


async def _attempt(front, index: int, metadata):
    """At another's session, by each method that names one."""
    name = ("Resume", "Abort", "GetSession")[index % 3]
    return await calls(front, name, METHODS[name](session_id="mine"), metadata)


async def test_a_foreign_session_is_refused_like_one_that_never_was(running):
    async with stub(running.address) as front:
        await read(front.Generate(request(7, 5, "mine"), metadata=bearer(ACME)))
        for name in ("Resume", "Abort", "GetSession"):
            message = METHODS[name](session_id="mine")
            foreign = await calls(front, name, message, bearer(BETA))
            never = await calls(front, name, METHODS[name](session_id="none"), bearer(BETA))
            assert foreign.code is grpc.StatusCode.NOT_FOUND
            never.message = never.message.replace("none", "mine")
            assert foreign == never
        mine = await front.GetSession(
            pb.GetSessionRequest(session_id="mine"), metadata=bearer(ACME)
        )
    assert mine.status == pb.SESSION_STATUS_FINISHED


async def test_the_same_id_of_two_tenants_names_two_sessions(running):
    async with stub(running.address) as front:
        one = await read(front.Generate(request(1, 9, "same"), metadata=bearer(ACME)))
        two = await read(front.Generate(request(2, 9, "same"), metadata=bearer(BETA)))
    assert (one.tokens, two.tokens) == (text(1, 9), text(2, 9))


async def test_a_tenant_at_its_limit_is_refused_with_a_delay_and_another_is_served(running):
    async with stub(running.address) as front:
        _held = await two_of_acme(front)
        more = await read(front.Generate(request(3, 5, "more"), metadata=bearer(ACME)))
        other = await read(front.Generate(request(4, 5), metadata=bearer(BETA)))
        unknown = front.GetSession(pb.GetSessionRequest(session_id="more"), metadata=bearer(ACME))
        nothing = await refused(unknown)
        for seed in (1, 2):
            await front.Abort(
                pb.AbortRequest(session_id=f"held{seed}"), metadata=bearer(ACME), timeout=60
            )
        after = await read(front.Generate(request(3, 5, "more"), metadata=bearer(ACME)))
    assert (more.code, more.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "of this tenant" in more.message
    assert more.retry_after > 0
    assert nothing.code is grpc.StatusCode.NOT_FOUND
    assert (other.tokens, after.tokens) == (text(4, 5), text(3, 5))
    assert running.inference.sessions_of("acme") == running.inference.active_sessions == 0


async def test_a_retry_of_a_session_that_is_open_takes_no_second_place(running):
    async with stub(running.address) as front:
        _held = await two_of_acme(front)
        again = front.Generate(request(1, 50_000, "held1"), metadata=bearer(ACME))
        assert (await again.read()).started.session_id == "held1"
        other = front.Generate(request(9, 50_000, "held1"), metadata=bearer(ACME))
        assert (await read(other)).code is grpc.StatusCode.ALREADY_EXISTS


async def test_more_tokens_than_a_tenant_may_ask_for_are_a_bad_request(running):
    async with stub(running.address) as front:
        long = await read(front.Generate(request(1, 100_001), metadata=bearer(ACME)))
        heavy = await read(front.Generate(request(1, 999), metadata=bearer(BETA)))
    assert {long.code, heavy.code} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert long.message == (
        "sampling.max_tokens: 100001 is not allowed; "
        "allowed is 1 to 100000 (the limit of this tenant)"
    )
    assert "sampling.max_tokens: 999 is not allowed; allowed is at most 1000" in heavy.message


async def test_a_request_that_names_no_length_gets_what_its_tenant_may_have(tmp_path):
    door = door_of(tmp_path, {"acme": TENANTS["acme"] | {"max_tokens": 7}})
    async with known_front(door=door) as (_, front):
        asked = request(1, 1)
        asked.sampling.ClearField("max_tokens")
        assert (await read(front.Generate(asked, metadata=bearer(ACME)))).tokens == text(1, 7)


async def test_tenants_are_not_told_where_workers_are_or_how_busy_others_are(running):
    async with stub(running.address) as front:
        held = front.Generate(request(1, 50_000), metadata=bearer(ACME))
        await held.read()
        told = {
            token: await front.GetServerInfo(pb.GetServerInfoRequest(), metadata=bearer(token))
            for token in (ACME, BETA)
        }
    assert [info.active_sessions for info in told.values()] == [1, 0]
    assert {worker.address for info in told.values() for worker in info.workers} == {""}
    assert {worker.role for worker in told[BETA].workers} == {"verifier"}


async def test_health_needs_no_token(running):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with grpc.aio.insecure_channel(running.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
