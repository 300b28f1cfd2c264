"""Tenants in front of the gateways' service: the same door as before our own."""

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from services.runtime.serving.bearer import token_entry
from tests.gateway.kit import GREEDY, answered, asked, gateway_stub
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import Ended, bearer, door_of, known_verifier, text
from tests.waiting import until

ACME, BETA = "token-of-acme-0123456789", "token-of-beta-0123456789"
TENANTS = {
    "acme": {"tokens": [token_entry(ACME)], "max_sessions": 1},
    "beta": {"tokens": [token_entry(BETA)]},
}
LONG = GREEDY | {"max_tokens": 50_000, "seed": 1}
MESSAGES = {
    method.name: {**vars(engine), **vars(common)}[method.input_type.name]
    for method in engine.DESCRIPTOR.services_by_name["VllmEngine"].methods
}


@pytest.fixture
async def running(tmp_path):
    options = {"door": door_of(tmp_path, TENANTS), "vllm_engine": True}
    async with cluster([await known_verifier(5.0)], [], PATIENT, **options) as made:
        yield made


async def test_no_method_answers_without_a_token_or_with_a_wrong_one(running):
    async with gateway_stub(running.address) as front:
        for name, message in MESSAGES.items():
            for metadata in ((), bearer("wrong")):
                call = getattr(front, name)(message(), metadata=metadata)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await (call.read() if hasattr(call, "read") else call)
                assert Ended.of(caught.value).reason == "UNAUTHENTICATED", name
    assert not running.inference.active_sessions


async def test_a_tenant_reaches_its_own_requests_and_its_own_limits(running):
    async with gateway_stub(running.address) as front:
        held = front.Generate(asked("held", **LONG), metadata=bearer(ACME))
        await held.read()
        more = await answered(front.Generate(asked("more", **LONG), metadata=bearer(ACME)))
        abort = engine.AbortRequest(request_ids=["held"])
        await front.Abort(abort, metadata=bearer(BETA))
        same_id = asked("held", **GREEDY | {"seed": 2})
        other = await answered(front.Generate(same_id, metadata=bearer(BETA)))
        assert running.inference.sessions_of("acme") == 1
        await front.Abort(abort, metadata=bearer(ACME))
        await until(lambda: not running.inference.active_sessions)
    refusal = more.refusal
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "of this tenant" in refusal.message
    assert other.tokens == text(2, 24)


async def test_a_tenant_is_told_of_its_own_load_alone(running):
    async with gateway_stub(running.address) as front:
        held = front.Generate(asked("held", **LONG), metadata=bearer(ACME))
        await held.read()
        counts = {}
        for token in (ACME, BETA):
            info = await front.GetServerInfo(engine.GetServerInfoRequest(), metadata=bearer(token))
            told = await front.GetLoads(engine.GetLoadsRequest(), metadata=bearer(token))
            [load] = told.loads
            counts[token] = (info.active_requests, load.num_total_reqs, load.num_running_reqs)
            assert (load.num_used_tokens, load.max_total_num_tokens, load.token_usage) == (0, 0, 0)
        held.cancel()
    assert counts == {ACME: (1, 1, 1), BETA: (0, 0, 0)}


async def test_the_name_of_a_session_is_its_tenants_own(running):
    async with gateway_stub(running.address) as front:
        told = []
        for token, seed in ((ACME, 1), (BETA, 2), (ACME, 1)):
            named = asked("paceline(session=same)", **GREEDY | {"seed": seed})
            told.append(await answered(front.Generate(named, metadata=bearer(token))))
    assert [answer.tokens for answer in told] == [text(1, 24), text(2, 24), text(1, 24)]
