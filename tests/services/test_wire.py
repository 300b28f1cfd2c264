"""The wire loses nothing of what is said of workers, and no bytes raise but ProtocolError."""

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import types_pb2
from paceline.worker.v1 import verifier_pb2

from services.contract import types as t
from services.contract import wire
from services.contract.errors import ProtocolError
from services.contract.types import StepTime
from services.contract.wire.tokenizer import PART_BYTES
from tests.services import wire_strategies as make


def resent(message):
    """The message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


@given(make.descriptions)
def test_a_description_arrives_as_it_left(worker):
    assert wire.decode_description(resent(wire.encode_description(worker))) == worker


@given(make.bundles)
def test_a_tokenizer_arrives_as_it_left(bundle):
    assert wire.join_bundle(wire.split_bundle(bundle)) == bundle


def test_a_large_tokenizer_travels_in_parts_of_at_most_a_mebibyte():
    bundle = t.TokenizerBundle("f", "x" * (2 * PART_BYTES + 5))
    parts = list(wire.split_bundle(bundle))
    assert [len(part) <= PART_BYTES for part in parts] == [True] * 3
    assert wire.join_bundle(parts) == bundle


DECODERS = {
    types_pb2.WorkerDescription: wire.decode_description,
    types_pb2.LinkHello: wire.decode_hello,
}


@given(st.sampled_from(list(DECODERS)), st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_protocol_error(kind, data):
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    with contextlib.suppress(ProtocolError):
        DECODERS[kind](message)


@given(st.lists(st.binary(max_size=20), max_size=3))
def test_random_parts_of_a_tokenizer_raise_nothing_but_protocol_error(parts):
    with contextlib.suppress(ProtocolError):
        wire.join_bundle(parts)


@pytest.mark.parametrize("rows", [(), (1,), (1, 2, 65_536), range(1, 65)])
def test_step_times_arrive_as_they_left(rows):
    times = tuple(StepTime(count, 40.5 + count) for count in rows)
    sent = verifier_pb2.VerifierServiceDescribeResponse(step_times=wire.encode_step_times(times))
    assert wire.decode_step_times(resent(sent).step_times) == times


@pytest.mark.parametrize(
    ("times", "complaint"),
    [
        ([(rows, 1.0) for rows in range(1, 66)], "65 are more than 64"),
        ([(0, 1.0)], "rows from 1 on"),
        ([(65_537, 1.0)], "rows from 1 on"),
        ([(1, 1.0), (1, 2.0)], "ascending"),
        ([(2, 1.0), (1, 2.0)], "ascending"),
        ([(1, 0.0)], "above 0"),
        ([(1, -1.0)], "no duration"),
        ([(1, float("nan"))], "no duration"),
        ([(1, float("inf"))], "no duration"),
    ],
)
def test_step_times_that_cannot_be_are_refused(times, complaint):
    sent = verifier_pb2.VerifierServiceDescribeResponse(
        step_times=[verifier_pb2.StepTime(rows=rows, ms=ms) for rows, ms in times]
    )
    with pytest.raises(ProtocolError, match=complaint):
        wire.decode_step_times(resent(sent).step_times)
