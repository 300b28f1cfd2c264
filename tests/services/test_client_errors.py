"""The published client: what it refuses, and which error a status becomes."""

import os
import subprocess
import sys
from pathlib import Path

import grpc
import paceline
import pytest
from google.rpc import error_details_pb2
from paceline import Client

from tests.services.breaking_inference import status

PROTOS = Path(__file__).resolve().parents[2] / "protos"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_tokens": -1}, "sampling.max_tokens"),
        ({"top_k": 1.5}, "sampling.top_k"),
        ({"seed": 2**64}, "sampling.seed"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids"),
        ({"num_candidates": "many"}, "speculation.num_candidates"),
        ({"rejection_sample_method": "greedy"}, "speculation.rejection_sample_method"),
    ],
)
async def test_a_value_its_field_cannot_hold_is_refused_by_name(client, service, options, field):
    with pytest.raises(paceline.InvalidArgument) as caught:
        client.generate("hi", **options)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert service.requests == []


@pytest.mark.parametrize(
    "arguments", [{}, {"prompt": "a", "tokens": [1]}, {"prompt": "a", "temprature": 1.0}]
)
async def test_wrong_arguments_are_a_type_error(client, arguments):
    with pytest.raises(TypeError):
        client.generate(**arguments)


TYPED = {
    "INVALID_ARGUMENT": paceline.InvalidArgument,
    "NOT_FOUND": paceline.NotFound,
    "ALREADY_EXISTS": paceline.AlreadyExists,
    "OUT_OF_RANGE": paceline.OutOfRange,
    "FAILED_PRECONDITION": paceline.FailedPrecondition,
    "ABORTED": paceline.Aborted,
    "DATA_LOSS": paceline.DataLoss,
    "RESOURCE_EXHAUSTED": paceline.ResourceExhausted,
    "DEADLINE_EXCEEDED": paceline.DeadlineExceeded,
    "UNAUTHENTICATED": paceline.Unauthenticated,
    "PERMISSION_DENIED": paceline.PermissionDenied,
    "INTERNAL": paceline.Internal,
    "UNIMPLEMENTED": paceline.Internal,
}


@pytest.mark.parametrize("name", TYPED)
async def test_a_status_becomes_its_typed_error(client, service, name):
    code = grpc.StatusCode[name]
    service.error = status(code, "WHY")
    service.script = service.script[:1]
    with pytest.raises(paceline.PacelineError, match="said so") as caught:
        await client.generate("hi")
    assert type(caught.value) is TYPED[name]
    assert (caught.value.code, caught.value.reason) == (code, "WHY")
    assert service.aborted == []


async def test_a_refusal_says_which_field_and_when_to_come_back(client, service):
    violation = error_details_pb2.BadRequest.FieldViolation(
        field="sampling.top_p", description="no"
    )
    service.error = status(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after=1.5, violation=violation)
    with pytest.raises(paceline.ResourceExhausted) as caught:
        await client.abort("s")
    assert caught.value.retry_after == 1.5
    assert caught.value.violations == (paceline.FieldViolation("sampling.top_p", "no"),)


async def test_nobody_there_is_unavailable():
    async with Client("127.0.0.1:1", resume=False) as client:
        with pytest.raises(paceline.Unavailable):
            await client.generate("hi")


async def test_a_closed_client_says_so(client):
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.model_info()


def without_checkout(code):
    """What a process does that finds the client and its dependencies, and nothing else."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    code = f"import sys; sys.path[:0] = {[str(PROTOS), *packages]!r}\n{code}"
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_client_imports_nothing_of_the_application():
    result = without_checkout(
        "import paceline\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(len(roots & {'services', 'orchestrator', 'torch', 'numpy', 'pydantic'}))"
    )
    assert (result.returncode, result.stderr) == (0, "")
