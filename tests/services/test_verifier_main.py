"""A verifier process: its settings, what stops its start, and one that really serves."""

import signal

import pytest
from paceline.worker.v1 import verifier_pb2, verifier_pb2_grpc
from pydantic import ValidationError

from services.cluster.flags import Flags
from services.contract.errors import StartError
from services.contract.frames import StepFrame, step_rows
from services.contract.types import LinkHello
from services.contract.wire import decode_description, decode_step_times
from services.contract.wire.protocol2 import VERIFIER_LINK_2
from services.runtime.serving import open_channel
from services.verifier.main import run
from services.verifier.settings import VerifierSettings
from tests.models import VOCAB_SIZE, tiny_model_folder
from tests.services.link_kit import first_event, process
from tests.services.running_bench import start

pytestmark = pytest.mark.usefixtures("no_environment")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "target"),
        ({"target": ""}, "target"),
        ({"target": "m", "port": 70000}, "port"),
        ({"target": "m", "dtype": "int4"}, "dtype"),
        ({"target": "m", "threads": 0}, "threads"),
        ({"target": "m", "max_step_tokens": 0}, "max_step_tokens"),
        ({"target": "m", "target_step_ms": 0}, "target_step_ms"),
        ({"target": "m", "tensor_parallel": 0}, "tensor_parallel"),
        ({"synthetic": "f.json", "tensor_parallel": 2}, "only --engine vllm splits"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(values, named):
    with pytest.raises(ValidationError, match=named):
        VerifierSettings(**values)


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PACELINE_TARGET", "some-model")
    monkeypatch.setenv("PACELINE_CPUS", "0,1")
    settings = Flags("paceline verifier", "", VerifierSettings).read(VerifierSettings)
    assert (settings.target, settings.cpus) == ("some-model", (0, 1))


def test_a_model_that_is_not_there_stops_the_start(tmp_path):
    with pytest.raises(StartError, match="nothing"):
        run(VerifierSettings(target=str(tmp_path / "nothing")))


# --- a real process -------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from services.verifier.main import run
from services.verifier.settings import VerifierSettings
target, ready = sys.argv[1:]
settings = VerifierSettings(target=target, worker_id="v1", threads=1, ready_file=Path(ready))
sys.exit(run(settings))
"""


@pytest.mark.processes
async def test_a_verifier_serves_a_model_folder_and_ends_on_sigterm(tmp_path):
    target = str(tiny_model_folder(tmp_path))
    with process(SCRIPT, tmp_path / "ready", target) as (running, address):
        async with open_channel(address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            answer = await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest())
            worker = decode_description(answer.worker)
            assert (worker.worker_id, worker.vocab_size) == ("v1", VOCAB_SIZE)
            assert worker.tokenizer_fingerprint
            assert {1, 2, 4, 8} <= {one.rows for one in decode_step_times(answer.step_times)}
            call = stub.Link()
            hello = LinkHello("test", protocol=2)
            await call.write(VERIFIER_LINK_2.encode_request([start()], hello))
            [row] = step_rows(await first_event(StepFrame, call, VERIFIER_LINK_2))
            assert (row.handle, row.position, len(row.tokens)) == (1, 0, 1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
