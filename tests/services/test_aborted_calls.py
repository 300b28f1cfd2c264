"""A refused call keeps nothing of what it was refused for, whether or not the collector comes."""

import gc
import weakref

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from services.contract.errors import InvalidRequest
from services.runtime.serving import GrpcServer, ServingOptions, border
from tests.waiting import until


class Held:
    """Stands for megabytes."""


class Refusing(pb_grpc.InferenceServiceServicer):
    def __init__(self):
        self.held = []

    def hold(self):
        held = Held()
        self.held.append(weakref.ref(held))
        return held

    async def Generate(self, request, context):
        held = self.hold()
        async with border(context):
            raise InvalidRequest("prompt", held, "less")

    async def Resume(self, request, context):
        held = self.hold()
        async with border(context):
            yield pb.ResumeResponse()
            raise InvalidRequest("prompt", held, "less")

    async def GetSession(self, request, context):
        held = self.hold()
        async with border(context):
            raise InvalidRequest("prompt", held, "less")


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "call",
    [
        lambda stub: stub.Generate(pb.GenerateRequest()).read(),
        lambda stub: stub.Resume(pb.ResumeRequest()),
        lambda stub: stub.GetSession(pb.GetSessionRequest()),
    ],
    ids=["a stream that is written", "a stream that is yielded", "an answer"],
)
@pytest.mark.usefixtures("no_collector")
async def test_what_a_refused_call_held_is_free_without_the_collector(call):
    servicer, server = Refusing(), GrpcServer(ServingOptions())
    pb_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        asked = call(pb_grpc.InferenceServiceStub(channel))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (_to_its_end(asked) if hasattr(asked, "read") else asked)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: all(held() is None for held in servicer.held))
    assert len(servicer.held) == 1
    await server.stop()


async def _to_its_end(stream):
    async for _ in stream:
        pass
