"""The published client, connected to a service that plays a script."""

import grpc
import pytest
from paceline import Client
from paceline.v1 import inference_pb2_grpc as pb_grpc

from tests.services.fake_inference import FakeService


@pytest.fixture
async def service():
    return FakeService()


@pytest.fixture
async def client(service):
    server = grpc.aio.server()
    pb_grpc.add_InferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}") as client:
        yield client
    await server.stop(None)
