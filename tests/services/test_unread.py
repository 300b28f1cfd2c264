"""How much of a message comes in before anybody reads it."""

import asyncio

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from services.runtime.serving import GrpcServer, ServingOptions
from testkit.chaos.proxy import Network
from tests.waiting import until

MIB = 1 << 20


class Answering(pb_grpc.InferenceServiceServicer):
    async def Abort(self, request, context):
        return pb.AbortResponse()


class Waiting(grpc.aio.ServerInterceptor):
    """One call whose turn never comes."""

    def __init__(self):
        self.waits = asyncio.Event()

    async def intercept_service(self, continuation, details):
        if details.method.endswith("GetSession"):
            self.waits.set()
            await asyncio.Event().wait()
        return await continuation(details)


async def taken_in(unread, least):
    """Bytes of 4 MiB, after other messages showed how fast the wire is; `least` are waited for."""
    waiting = Waiting()
    server = GrpcServer(ServingOptions(unread_bytes=unread), (waiting,))
    pb_grpc.add_InferenceServiceServicer_to_server(Answering(), server.grpc)
    address = await server.start()
    with Network() as network:
        proxy = network.proxy(lambda: address)
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            for _ in range(5):
                await stub.Abort(pb.AbortRequest(session_id="a" * 4 * MIB))
            before = proxy.passed
            call = stub.GetSession(pb.GetSessionRequest(session_id="a" * 4 * MIB))
            await waiting.waits.wait()
            await until(lambda: proxy.passed - before > least)
            await asyncio.sleep(0.5)
            call.cancel()
            taken = proxy.passed - before
    await server.stop()
    return taken


@pytest.mark.parametrize("unread", [64 * 1024, 256 * 1024])
async def test_so_much_is_taken_in_of_a_message_that_waits(unread):
    assert await taken_in(unread, 0.5 * unread) < 1.5 * unread


async def test_without_a_bound_it_is_as_much_as_the_wire_is_fast():
    assert await taken_in(None, MIB) > MIB
