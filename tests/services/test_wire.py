"""The wire loses nothing, and no bytes raise anything but ProtocolError."""

import contextlib
import dataclasses
import inspect
import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import drafter_pb2, types_pb2, verifier_pb2

from services.contract import types as t
from services.contract import wire
from services.contract.errors import ProtocolError
from services.contract.types import StepTime
from services.contract.wire.floats import decode_floats
from services.contract.wire.tokenizer import PART_BYTES
from tests.services import wire_strategies as make


def resent(message):
    """The message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


ROUND_TRIPS = {
    "drafter_command": make.drafter_commands,
    "drafter_event": make.drafter_events,
    "verifier_command": make.verifier_commands,
    "verifier_event": make.verifier_events,
    "description": make.descriptions,
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
@given(data=st.data())
def test_a_record_arrives_as_it_left(name, data):
    encode, decode = (getattr(wire, f"{way}_{name}") for way in ("encode", "decode"))
    record = data.draw(ROUND_TRIPS[name])
    assert decode(resent(encode(record))) == record


@given(make.bundles)
def test_a_tokenizer_arrives_as_it_left(bundle):
    assert wire.join_bundle(wire.split_bundle(bundle)) == bundle


def test_a_large_tokenizer_travels_in_parts_of_at_most_a_mebibyte():
    bundle = t.TokenizerBundle("f", "x" * (2 * PART_BYTES + 5))
    parts = list(wire.split_bundle(bundle))
    assert [len(part) <= PART_BYTES for part in parts] == [True] * 3
    assert wire.join_bundle(parts) == bundle


@given(st.lists(make.drafter_commands, max_size=3), st.none() | make.hellos)
def test_a_batch_of_commands_keeps_its_order(commands, hello):
    message = resent(wire.DRAFTER_LINK.encode_request(commands, hello))
    assert wire.DRAFTER_LINK.decode_request(message) == (hello, commands)


@given(st.lists(make.verifier_events, max_size=3))
def test_a_batch_of_events_keeps_its_order(events):
    message = resent(wire.VERIFIER_LINK.encode_response(events))
    assert wire.VERIFIER_LINK.decode_response(message) == events


def test_every_record_of_the_links_has_a_strategy():
    """A field or a message added later cannot be forgotten here."""
    drawn = {
        record
        for union in (t.DrafterCommand, t.DrafterEvent, t.VerifierCommand, t.VerifierEvent)
        for record in union.__args__
    }
    messages = drafter_pb2.DrafterCommand, drafter_pb2.DrafterEvent
    messages += verifier_pb2.VerifierCommand, verifier_pb2.VerifierEvent
    arms = [field.message_type for m in messages for field in m.DESCRIPTOR.fields]
    assert {record.__name__ for record in drawn} == {arm.name for arm in arms}
    for record in drawn:
        arm = next(arm for arm in arms if arm.name == record.__name__)
        renamed = {"session": "session_id"}
        names = {renamed.get(name, name) for name in inspect.signature(record).parameters}
        # The same reason once more, for those who know it.
        names |= {"precise_reason"} if record is t.SessionFailed else set()
        assert names == {field.name for field in arm.fields}


@pytest.mark.parametrize("reason", t.FailureReason)
def test_a_peer_of_the_version_before_knows_every_reason_that_it_reads(reason):
    sent = wire.VERIFIER_LINK.encode_response([t.SessionFailed("s", reason, "why", 3)])
    [event] = sent.events
    assert event.failed.reason <= t.FailureReason.INTERNAL.value
    if reason.for_good:
        assert event.failed.reason == t.FailureReason.INVALID.value
    event.failed.precise_reason = 99
    [read] = wire.VERIFIER_LINK.decode_response(sent)
    assert read.reason.value == event.failed.reason


DECODERS = {
    drafter_pb2.DrafterServiceLinkRequest: wire.DRAFTER_LINK.decode_request,
    drafter_pb2.DrafterServiceLinkResponse: wire.DRAFTER_LINK.decode_response,
    verifier_pb2.VerifierServiceLinkRequest: wire.VERIFIER_LINK.decode_request,
    verifier_pb2.VerifierServiceLinkResponse: wire.VERIFIER_LINK.decode_response,
    types_pb2.WorkerDescription: wire.decode_description,
    types_pb2.LinkHello: wire.decode_hello,
}


def _only_protocol_errors(kind, data):
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    with contextlib.suppress(ProtocolError):
        DECODERS[kind](message)


@given(st.sampled_from(list(DECODERS)), st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_protocol_error(kind, data):
    _only_protocol_errors(kind, data)


LINKS = {
    drafter_pb2.DrafterServiceLinkRequest: (wire.DRAFTER_LINK, make.drafter_commands),
    drafter_pb2.DrafterServiceLinkResponse: (wire.DRAFTER_LINK, make.drafter_events),
    verifier_pb2.VerifierServiceLinkRequest: (wire.VERIFIER_LINK, make.verifier_commands),
    verifier_pb2.VerifierServiceLinkResponse: (wire.VERIFIER_LINK, make.verifier_events),
}


@pytest.mark.parametrize("kind", LINKS)
@given(data=st.data())
def test_mangled_messages_raise_nothing_but_protocol_error(kind, data):
    codec, batch = LINKS[kind]
    encode = codec.encode_request if "Request" in kind.__name__ else codec.encode_response
    raw = bytearray(encode([data.draw(batch)]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _only_protocol_errors(kind, bytes(raw))


@given(st.lists(st.binary(max_size=20), max_size=3))
def test_random_parts_of_a_tokenizer_raise_nothing_but_protocol_error(parts):
    with contextlib.suppress(ProtocolError):
        wire.join_bundle(parts)


OPENING = t.OpenVerify("s", 1, 1, (1,), (), t.VerifyMode.GREEDY, t.ResolvedSampling(), 0, 4)


def _open(**changes):
    message = wire.encode_verifier_command(OPENING)
    for name, value in changes.items():
        if value is None:
            message.open.ClearField(name)
        else:
            setattr(message.open, name, value)
    return message


def _verify(**tree):
    tree = {"proposal": types_pb2.PROPOSAL_ONE_HOT, **tree}
    return verifier_pb2.VerifierCommand(
        verify=verifier_pb2.Verify(session_id="s", tree=types_pb2.DraftTree(**tree))
    )


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (verifier_pb2.VerifierCommand(), "none of open, verify, close"),
        (_open(sampling=None), "sampling is missing"),
        (_open(mode=0), "open.mode"),
        (_open(mode=99), "open.mode: unknown VerifyMode 99"),
        (_open(session_id=""), "session_id is empty"),
        (_verify(proposal=0), "tree.proposal"),
        (_verify(proposal=77), "tree.proposal"),
        (_verify(q=[types_pb2.SparseRow(token_ids=[1], dtype=1)]), "0 bytes for 1 values"),
        (_verify(q=[types_pb2.SparseRow(token_ids=[1], dtype=9)]), "unknown dtype 9"),
    ],
)
def test_a_broken_command_is_refused_by_name(message, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        wire.decode_verifier_command(message)


@pytest.mark.parametrize("parents", [(-1,), (-1, 1), (-2, 0), (5, 6, 7)])
def test_parents_that_make_no_tree_arrive_for_the_receiver_to_refuse_one_session(parents):
    message = _verify(token_ids=[1, 2], parents=parents)
    assert wire.decode_verifier_command(message).tree.parents == parents


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"token_ids": [1], "accepted": 2}, "2 accepted among 1 tokens"),
        ({"token_ids": [1, 2, 3], "accepted": 1}, "1 accepted among 3 tokens"),
        ({"token_ids": [1], "near_ties": 2}, "2 near-ties among 1 tokens"),
        ({"token_ids": [1], "logprobs": [verifier_pb2.LogprobRow()] * 2}, "2 logprobs"),
        ({"token_ids": [1], "accepted": 1, "accepted_nodes": [0, 1]}, "2 nodes"),
    ],
)
def test_a_verdict_that_does_not_add_up_is_refused(fields, complaint):
    verdict = verifier_pb2.Verdict(session_id="s", mode=types_pb2.VERIFY_MODE_GREEDY, **fields)
    with pytest.raises(ProtocolError, match=complaint):
        wire.decode_verifier_event(verifier_pb2.VerifierEvent(verdict=verdict))


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


def test_a_verify_without_a_tree_is_the_empty_block():
    message = verifier_pb2.VerifierCommand(verify=verifier_pb2.Verify(session_id="s", round=3))
    assert wire.decode_verifier_command(message) == t.Verify("s", 0, 3, 0, want_bonus=False)


def test_half_floats_and_brain_floats_decode():
    values = (0.5, -2.0, 0.0)
    halves = struct.pack("<3e", *values)
    brains = b"".join(struct.pack("<f", value)[2:] for value in values)
    assert decode_floats(halves, 3, "q", types_pb2.D_TYPE_FLOAT16) == values
    assert decode_floats(brains, 3, "q", types_pb2.D_TYPE_BFLOAT16) == values


def test_a_batch_too_large_for_one_message_leaves_in_several_and_in_order():
    length = wire.MESSAGE_BYTES // 8
    batch = [
        dataclasses.replace(OPENING, session=f"s{n}", prompt=(40_000,) * length) for n in range(5)
    ]
    messages = list(wire.in_messages(wire.VERIFIER_LINK.encode_request, batch))
    assert 1 < len(messages) < len(batch)
    assert all(message.ByteSize() <= wire.MESSAGE_BYTES for message in messages)
    decoded = [wire.VERIFIER_LINK.decode_request(resent(message))[1] for message in messages]
    assert [command for each in decoded for command in each] == batch


def test_what_is_too_large_alone_leaves_alone():
    large = dataclasses.replace(OPENING, prompt=(40_000,) * (wire.MESSAGE_BYTES // 2))
    small = t.CloseVerify("s")
    messages = list(wire.in_messages(wire.VERIFIER_LINK.encode_request, [small, large, small]))
    sizes = [len(wire.VERIFIER_LINK.decode_request(message)[1]) for message in messages]
    assert sizes == [1, 1, 1]
