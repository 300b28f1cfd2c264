"""Health alone, in plaintext, on a port of its own."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.worker.v1 import verifier_pb2, verifier_pb2_grpc

from services.contract.errors import StartError
from services.contract.worker_messages import EndSession
from services.runtime.serving import GrpcServer, ServingOptions, open_channel
from tests.certificates import Authority
from tests.services.link_kit import opened, worker

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def status(channel, name=""):
    request = health_pb2.HealthCheckRequest(service=name)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)).status


async def test_it_answers_without_tls_and_serves_nothing_else(tmp_path):
    tls = Authority(tmp_path).issue("server")
    options = ServingOptions(
        tls=tls, reflection=True, health_address="127.0.0.1:0", health_file=tmp_path / "health"
    )
    server = GrpcServer(options)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(
        verifier_pb2_grpc.VerifierServiceServicer(), server.grpc
    )
    address = await server.start("paceline.worker.v1.VerifierService")
    probed = (tmp_path / "health").read_text().strip()
    assert probed == server.health_address != address
    async with open_channel(probed) as channel:
        assert [await status(channel, name) for name in ("", "liveness", "readiness")] == [1] * 3
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        reflecting = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )(iter([b":\x00"]))
        assert await reflecting.code() is grpc.StatusCode.UNIMPLEMENTED
    async with open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await status(channel)
    await server.stop()
    async with open_channel(probed) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await status(channel)


async def test_a_draining_worker_says_so_until_its_sessions_are_gone(tmp_path):
    file = tmp_path / "health"
    options = {"health_address": "127.0.0.1:0", "health_file": file, "grace": 60.0}
    async with worker(**options) as served, open_channel(file.read_text().strip()) as channel:
        link = await opened(served)
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == SERVING
        served.stop.set()
        async with asyncio.timeout(60):
            assert (await watching.read()).status == NOT_SERVING
        assert [await status(channel, name) for name in ("readiness", "liveness")] == [2, 1]
        await link.send(EndSession(1))
        assert (await link.ended())[0] is grpc.StatusCode.OK


async def test_a_taken_port_is_refused_by_its_setting():
    first = GrpcServer(ServingOptions(health_address="127.0.0.1:0"))
    await first.start()
    second = GrpcServer(ServingOptions(health_address=first.health_address))
    with pytest.raises(StartError, match=f"health_port: cannot listen on {first.health_address}"):
        await second.start()
    await second.stop()
    await first.stop()
