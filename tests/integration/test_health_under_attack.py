"""Strangers hold as many calls to the health service as they like: every check is answered."""

import asyncio
from collections import Counter

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.serving import health_service
from services.runtime.serving.health_service import MOST_OF_A_PEER
from tests.integration.cluster import cluster
from tests.integration.known import door_of, known_verifier

SERVING = health_pb2.HealthCheckResponse.SERVING
NAMED = health_pb2.HealthCheckRequest(service="readiness")
CHECK = f"/{health_service.NAME}/Check"
WATCH = f"/{health_service.NAME}/Watch"
CROWD = 400
WITH_A_TOKEN = {"acme": {"tokens": []}}


@pytest.fixture
async def running(tmp_path):
    door = door_of(tmp_path, WITH_A_TOKEN)
    async with cluster([await known_verifier(1.0)], [], door=door) as made:
        yield made


def answered(channel):
    return health_pb2_grpc.HealthStub(channel).Check(NAMED, timeout=60)


async def told(call):
    """What a watch said first; or its status."""
    try:
        answer = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return answer.status if answer is not grpc.aio.EOF else await call.code()


async def test_a_stranger_who_watches_takes_no_checks_place_and_has_a_bound(running):
    async with (
        grpc.aio.insecure_channel(running.address) as stranger,
        grpc.aio.insecure_channel(running.address) as prober,
    ):
        watch = health_pb2_grpc.HealthStub(stranger).Watch
        watches = [watch(NAMED) for _ in range(CROWD)]
        said = Counter(await asyncio.gather(*map(told, watches)))
        too_many = grpc.StatusCode.RESOURCE_EXHAUSTED
        assert said == {SERVING: MOST_OF_A_PEER, too_many: CROWD - MOST_OF_A_PEER}
        for channel in (stranger, prober):
            assert (await answered(channel)).status == SERVING
        for call in watches:
            call.cancel()
        assert await told(watch(NAMED)) == SERVING


@pytest.mark.parametrize("method", [CHECK, WATCH])
async def test_a_stranger_who_asks_for_nothing_takes_no_checks_place(running, method):
    async with (
        grpc.aio.insecure_channel(running.address) as stranger,
        grpc.aio.insecure_channel(running.address) as prober,
    ):
        silent = [stranger.stream_stream(method)() for _ in range(CROWD)]
        await asyncio.gather(*(call.wait_for_connection() for call in silent[-1:]))
        assert (await answered(prober)).status == SERVING
        assert await silent[0].code() is grpc.StatusCode.UNAVAILABLE
        assert (await answered(stranger)).status == SERVING
        for call in silent:
            call.cancel()


async def test_a_question_that_is_none_is_answered_so_without_a_line_in_the_log(running, caplog):
    async with grpc.aio.insecure_channel(running.address) as stranger:
        for method in (CHECK, WATCH):
            for message in (b"\xff\xff", None):
                call = stranger.stream_stream(method)(iter([message] if message else []))
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = health_pb2.HealthCheckRequest(service="nothing")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_pb2_grpc.HealthStub(stranger).Check(unknown)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert not caplog.records
