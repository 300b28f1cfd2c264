"""What was published stays (`make freeze`), and the stubs are what the protos give."""

import subprocess
import sys
from pathlib import Path

import paceline
import pytest
from paceline.v1 import inference_pb2

from services.contract.types import DraftSource

PROTOS = Path(__file__).resolve().parents[2] / "protos"
BUF = Path(sys.executable).with_name("buf")

FILE = inference_pb2.DESCRIPTOR


def test_a_source_is_the_same_number_and_name_for_drafters_and_clients():
    published = {
        value.number: value.name.removeprefix("DRAFT_SOURCE_").lower()
        for value in inference_pb2.DraftSource.DESCRIPTOR.values
    }
    assert published == {source.value: source.name.lower() for source in DraftSource}
    known = [source.value for source in paceline.DraftSource]
    assert known == ["unknown", *list(published.values())[1:]]


def test_a_scalar_with_a_meaningful_default_tells_absent_from_zero():
    for message in ("SamplingParams", "SpeculationParams"):
        for field in FILE.message_types_by_name[message].fields:
            assert field.is_repeated or field.has_presence, field.full_name


def test_the_stubs_are_what_the_protos_give():
    check = [sys.executable, PROTOS / "generate.py", "--check"]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("command", [["lint"], ["breaking", "--against", "protos/frozen.binpb"]])
def test_buf_has_no_complaint(command):
    result = subprocess.run(
        [BUF, *command], cwd=PROTOS.parent, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
