"""Errors become statuses by one table; servers listen only where they may."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from paceline.v1 import inference_pb2, inference_pb2_grpc

from services.contract import errors
from services.runtime.serving import (
    GrpcServer,
    ServingOptions,
    border,
    channel_options,
    open_channel,
    send_headers,
    status_of,
)
from services.runtime.serving.border import _CODES
from services.runtime.serving.options import server_options

CODES = {
    errors.InvalidRequest("sampling.top_p", 2.0, "(0, 1]"): grpc.StatusCode.INVALID_ARGUMENT,
    errors.AlreadyExists("x"): grpc.StatusCode.ALREADY_EXISTS,
    errors.Unauthenticated("x"): grpc.StatusCode.UNAUTHENTICATED,
    errors.NotFound("x"): grpc.StatusCode.NOT_FOUND,
    errors.OffsetOutOfRange("x"): grpc.StatusCode.OUT_OF_RANGE,
    errors.Overloaded("x"): grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.NoWorker("x"): grpc.StatusCode.UNAVAILABLE,
    errors.Draining("x"): grpc.StatusCode.UNAVAILABLE,
    errors.StreamStalled("x"): grpc.StatusCode.UNAVAILABLE,
    errors.Fenced("x"): grpc.StatusCode.ABORTED,
    errors.DataLoss("x"): grpc.StatusCode.DATA_LOSS,
    errors.SessionAborted("x"): grpc.StatusCode.FAILED_PRECONDITION,
    errors.Impossible("x"): grpc.StatusCode.FAILED_PRECONDITION,
    errors.FormatTooCostly("x"): grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlinePassed("x"): grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.VersionMismatch("x"): grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProtocolError("x"): grpc.StatusCode.INVALID_ARGUMENT,
    errors.StoreError("x"): grpc.StatusCode.UNAVAILABLE,
    errors.StartError("x"): grpc.StatusCode.INTERNAL,
}


def detail(status, kind):
    found = kind()
    return found if any(packed.Unpack(found) for packed in status.details) else None


@pytest.mark.parametrize("error", CODES, ids=lambda error: type(error).__name__)
def test_an_error_has_its_status_and_its_name_as_reason(error):
    status = status_of(error)
    info = detail(status, error_details_pb2.ErrorInfo)
    assert status.code == CODES[error].value[0]
    assert status.message == str(error)
    assert info.domain == "paceline"
    assert info.reason.replace("_", "").lower() == type(error).__name__.lower()


async def test_who_is_cancelled_while_headers_leave_waits_for_them():
    leave = asyncio.Event()

    class Context:
        sent = False

        async def send_initial_metadata(self, _):
            await leave.wait()
            self.sent = True

    context = Context()
    sending = asyncio.create_task(send_headers(context))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending], timeout=0.05)
    assert not sending.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert context.sent


def test_every_error_of_the_tree_is_in_this_table():
    tree = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.PacelineError) and not kind.__subclasses__()
    }
    assert tree <= {type(error) for error in CODES}
    assert errors.PacelineError in _CODES


def test_a_bad_request_names_its_field_and_the_range():
    status = status_of(errors.InvalidRequest("sampling.top_p", 2.0, "(0, 1]"))
    [violation] = detail(status, error_details_pb2.BadRequest).field_violations
    assert violation.field == "sampling.top_p"
    assert "2.0" in violation.description
    assert "(0, 1]" in violation.description


def test_a_refusal_that_passes_says_when_to_come_back():
    status = status_of(errors.Overloaded("full", retry_after=1.5))
    assert detail(status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1500
    assert detail(status_of(errors.NotFound("x")), error_details_pb2.RetryInfo) is None


class Failing(inference_pb2_grpc.InferenceServiceServicer):
    """Raises what it is told, before or within a stream."""

    def __init__(self, error):
        self.error = error

    async def Abort(self, request, context):
        async with border(context):
            raise self.error

    async def Generate(self, request, context):
        async with border(context):
            yield inference_pb2.GenerateResponse()
            raise self.error


@asynccontextmanager
async def serving(error=None, **options):
    """A server whose calls fail like this, and a channel to it."""
    server = GrpcServer(ServingOptions(**options))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Failing(error), server.grpc)
    address = await server.start("paceline.v1.InferenceService")
    async with open_channel(address) as channel:
        yield server, address, channel
    await server.stop()


async def refused(error):
    """What the caller of a method that raises this gets."""
    async with serving(error) as (_, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceServiceStub(channel).Abort(
                inference_pb2.AbortRequest()
            )
    return caught.value


async def test_a_raised_error_reaches_the_caller_with_its_details():
    error = await refused(errors.InvalidRequest("session_id", "", "a name"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    told = detail(rpc_status.from_call(error), error_details_pb2.BadRequest)
    assert told.field_violations[0].field == "session_id"


async def test_an_error_within_a_stream_comes_after_its_messages():
    async with serving(errors.Fenced("taken over")) as (_, _, channel):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Generate(inference_pb2.GenerateRequest())
        assert await call.read() == inference_pb2.GenerateResponse()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.ABORTED


async def test_an_unexpected_error_tells_the_caller_nothing(caplog):
    error = await refused(KeyError("secret prompt"))
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "an RPC failed unexpectedly" in caplog.text


async def refused_start(match, **options):
    with pytest.raises(errors.StartError, match=match):
        async with serving(**options):
            pytest.fail("it began")


async def test_a_taken_port_is_refused_by_its_setting():
    async with serving() as (_, address, _):
        await refused_start(f"address: cannot listen on {address}", address=address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:5", "example.org:5"])
async def test_plaintext_beyond_loopback_needs_the_insecure_setting(address):
    await refused_start("insecure", address=address)


async def test_the_insecure_setting_allows_plaintext_everywhere():
    async with serving(address="0.0.0.0:0", insecure=True) as (_, address, _):
        assert address.startswith("0.0.0.0:")


async def test_health_has_three_names_and_tells_a_drain_from_a_failure():
    names = ("", "liveness", "readiness")
    async with serving() as (server, _, channel):
        stub = health_pb2_grpc.HealthStub(channel)

        async def health():
            requests = [health_pb2.HealthCheckRequest(service=name) for name in names]
            return [(await stub.Check(request)).status == 1 for request in requests]

        assert await health() == [True, True, True]
        await server.set_ready(False)
        assert await health() == [False, True, False]
        await server.set_failed()
        assert await health() == [False, False, False]


@pytest.mark.parametrize("enabled", [True, False])
async def test_reflection_is_served_only_when_asked_for(enabled):
    async with serving(reflection=enabled) as (_, _, channel):
        call = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=bytes,
            response_deserializer=bytes,
        )(iter([b":\x00"]))  # list_services
        if enabled:
            assert b"paceline.v1.InferenceService" in await call.read()
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_with_status_zero(number):
    code = (
        "import asyncio, os\n"
        "from services.runtime.serving import run, stop_on_signals\n"
        "async def main():\n"
        "    stop = stop_on_signals()\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    await asyncio.wait_for(stop.wait(), 30)\n"
        "    return 0\n"
        "raise SystemExit(run(main()))\n"
    )
    path = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "protos")])
    environment = {**os.environ, "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_grpc_knows_every_option_by_its_name():
    """An option with a wrong name is ignored in silence, and links are cut for pinging."""
    library = Path(grpc._cython.cygrpc.__file__).read_bytes()
    serving = ServingOptions(max_connection_age=60.0, unread_bytes=65_536)
    options = server_options(serving) + channel_options()
    for name, _ in options:
        assert name.encode() + b"\0" in library, name
