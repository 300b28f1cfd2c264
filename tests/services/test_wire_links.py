"""Links lose nothing of what is said, and refuse frames that do not add up, by their column."""

import contextlib
import inspect
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from paceline.worker.v1 import drafter_pb2, verifier_pb2

from services.contract import types as t
from services.contract import worker_messages as w
from services.contract.errors import ProtocolError
from services.contract.frames import (
    DraftFrame,
    DraftName,
    DraftRow,
    Grants,
    StepBytes,
    StepEnd,
    StepFrame,
    StepLogprobs,
    StepRow,
    WaitReason,
    draft_frame,
    grants,
    pack,
    step_frame,
    step_rows,
)
from services.contract.types import DraftTree, LogprobRow, Proposal, SparseRow
from services.contract.wire import DRAFTER_LINK, MESSAGE_BYTES, VERIFIER_LINK
from services.contract.wire.checks import MOST_SESSIONS
from services.contract.wire.codecs import STATES_BYTES
from tests.services import frame_strategies as make
from tests.services.wire_strategies import hellos


def resent(message):
    """The message as the other side parses it."""
    return type(message).FromString(message.SerializeToString())


WAYS = {
    "verifier commands": (VERIFIER_LINK, "request", make.verifier_commands),
    "verifier events": (VERIFIER_LINK, "response", make.verifier_events),
    "drafter commands": (DRAFTER_LINK, "request", make.drafter_commands),
    "drafter events": (DRAFTER_LINK, "response", make.drafter_events),
}


def sent(codec, way, batch):
    """A batch as the peer absorbs it."""
    message = resent(getattr(codec, f"encode_{way}")(batch))
    decoded = getattr(codec, f"decode_{way}")(message)
    return decoded[1] if way == "request" else decoded


@pytest.mark.parametrize("name", WAYS)
@given(data=st.data())
def test_what_is_said_arrives_as_it_left(name, data):
    codec, way, records = WAYS[name]
    one = data.draw(records)
    assert sent(codec, way, [one]) == [one]


ORDERS = {
    "verifier commands": (None, Grants, DraftFrame),
    "verifier events": (StepFrame, None),
    "drafter commands": (None, StepFrame),
    "drafter events": (None, DraftFrame),
}


@pytest.mark.parametrize("name", WAYS)
@given(data=st.data())
def test_a_batch_arrives_in_its_order_by_kind(name, data):
    codec, way, records = WAYS[name]
    batch = data.draw(st.lists(records, max_size=4))
    frames = (StepFrame, DraftFrame, Grants)
    wanted = [
        one
        for kind in ORDERS[name]
        for one in batch
        if (isinstance(one, kind) if kind else not isinstance(one, frames))
    ]
    assert sent(codec, way, batch) == wanted


def test_the_first_draft_of_an_opening_may_be_judged():
    row = StepRow(1, 1, 0, (5, 6), 1, (5,), name=DraftName(1, 0))
    frame = step_frame(StepFrame(1), [row])
    assert sent(VERIFIER_LINK, "response", [frame]) == [frame]
    assert list(step_rows(frame)) == [row]


@given(hellos)
def test_a_hello_opens_a_link(hello):
    message = resent(VERIFIER_LINK.encode_request([w.EndSession(3)], hello))
    assert VERIFIER_LINK.decode_request(message) == (hello, [w.EndSession(3)])


def test_every_record_of_the_links_has_a_message_with_its_fields():
    """A field or a message added later cannot be forgotten here."""
    links = {
        w.VerifierCommand: verifier_pb2.VerifierServiceLinkRequest,
        w.VerifierEvent: verifier_pb2.VerifierServiceLinkResponse,
        w.DrafterCommand: drafter_pb2.DrafterServiceLinkRequest,
        w.DrafterEvent: drafter_pb2.DrafterServiceLinkResponse,
    }
    for union, message in links.items():
        parts = {f.name: f.message_type for f in message.DESCRIPTOR.fields if f.name != "hello"}
        arms = [
            arm
            for name, kind in parts.items()
            for arm in (
                [f.message_type for f in kind.fields] if name in "commands events" else [kind]
            )
        ]
        known = {"SetWindow": {"SetWindow", "SetDraftWindow"}}
        for record in union.__args__:
            names = known.get(record.__name__, {record.__name__})
            [arm] = [arm for arm in arms if arm.name in names]
            assert {*inspect.signature(record).parameters} == {field.name for field in arm.fields}
        assert len(arms) == len(union.__args__)


# --- what is refused ----------------------------------------------------------------------


CHAIN = StepRow(1, 1, 5, (7, 8, 9), 2, (7, 8, 4), (), StepEnd.RECOVERED, DraftName(1, 2), 1.5)
TREE = StepRow(2, 1, 0, (7, 8, 9), 2, (4, 7, 8), (1, 2), StepEnd.BONUS, DraftName(1, 2))
PLAIN = StepRow(3, 1, 0, (6,))
CHAINS = step_frame(StepFrame(1), [CHAIN, PLAIN], [4, 4])
TREES = step_frame(StepFrame(1), [TREE, PLAIN])
LONE = step_frame(StepFrame(1), [PLAIN])
LOGPROBS = (LogprobRow(-0.5, (3,), (-0.25,)),)

COLUMNS = [
    name
    for name, kind in StepFrame.__annotations__.items()
    if kind == "bytes" and name != "handles"
]


def refused(event, complaint, codec=VERIFIER_LINK, way="response"):
    with pytest.raises(ProtocolError, match=complaint):
        sent(codec, way, [event])


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_a_step_that_is_too_long_is_refused(name):
    told = getattr(CHAINS, name)
    refused(replace(CHAINS, **{name: told + b"\1"}), f"StepFrame.{name}: {len(told) + 1} bytes")


@pytest.mark.parametrize(
    "name", ["openings", "positions", "counts", "accepted", "drafted", "ends", "tokens"]
)
def test_a_column_of_a_step_that_must_be_there_is_missed(name):
    refused(replace(CHAINS, **{name: b""}), f"StepFrame.{name}: 0 bytes")


NAN, ENDLESS = float("nan"), float("inf")

BAD_STEPS = {
    "handles in part": (CHAINS, {"handles": b"12345"}, "handles: 5 bytes"),
    "a session twice": (CHAINS, {"handles": pack("I", [1, 1])}, "handles: a session is there"),
    "no token": (CHAINS, {"counts": b"\x04\0", "accepted": b"\x02\0"}, "counts: a step brings no"),
    "more accepted": (LONE, {"accepted": b"\2", "paths": b""}, "accepted: not all"),
    "two own tokens": (CHAINS, {"accepted": b"\1\0"}, "accepted: not all tokens"),
    "more than drafted": (
        CHAINS,
        {"drafted": pack("H", [1, 0]), "draft_tokens": pack("I", [7])},
        "accepted: more than were drafted",
    ),
    "end 0": (CHAINS, {"ends": b"\0\2"}, "ends: one that is not known"),
    "end 4": (CHAINS, {"ends": b"\4\2"}, "ends: one that is not known"),
    "an own token that is none": (CHAINS, {"ends": b"\3\2"}, "ends: one that does not go"),
    "no own token": (
        CHAINS,
        {"counts": b"\2\1", "tokens": pack("I", [7, 8, 6])},
        "ends: one that does not go",
    ),
    "unknown draft": (CHAINS, {"draft_tokens": b""}, "draft_tokens: empty"),
    "other tokens": (CHAINS, {"draft_tokens": pack("I", [7, 9, 4])}, "draft_tokens: those acc"),
    "a path of none": (
        step_frame(StepFrame(1), [CHAIN._replace(judged=(7, 8))]),
        {"paths": pack("H", [0, 1])},
        "paths: there are none",
    ),
    "a path backwards": (TREES, {"paths": pack("H", [2, 1])}, "paths: no path"),
    "a path beyond": (TREES, {"paths": pack("H", [1, 3])}, "paths: no path"),
    "another path": (TREES, {"paths": pack("H", [0, 2])}, "paths: those accepted"),
    "a step of no length": (CHAINS, {"step_ms": NAN}, "step_ms: nan is no duration"),
    "a negative age": (CHAINS, {"age_ms": pack("f", [-1, 0])}, "age_ms: one that is no"),
    "an endless wait": (CHAINS, {"queue_ms": pack("f", [0, ENDLESS])}, "queue_ms: one that is no"),
    "a hold of no length": (CHAINS, {"hold_ms": pack("f", [0, NAN])}, "hold_ms: one that is no"),
    "a long draft": (CHAINS, {"draft_ms": pack("f", [1e9, 0])}, "draft_ms: one that is no"),
    "many near-ties": (CHAINS, {"near_ties": b"\4\0"}, "near_ties: more than tokens"),
    "half a name": (CHAINS, {"draft_numbers": b""}, "draft_numbers: they come with"),
    "reasons without end": (CHAINS, {"stood_out": (1,) * 65}, "stood_out: too many"),
    "logprobs of nobody": (LONE, {"logprobs": (StepLogprobs(1, LOGPROBS),)}, "logprobs: of no"),
    "logprobs twice": (LONE, {"logprobs": (StepLogprobs(0, LOGPROBS),) * 2}, "logprobs: a session"),
    "too few logprobs": (CHAINS, {"logprobs": (StepLogprobs(0, LOGPROBS),)}, "1 rows for 3 tokens"),
    "rows of nobody": (LONE, {"top_rows": (StepBytes(1, b"1"),)}, "top_rows: of no session"),
    "states twice": (LONE, {"states": (StepBytes(0, b"1"),) * 2}, "states: a session is there"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_step_that_cannot_be_is_refused_by_its_column(name):
    frame, changed, complaint = BAD_STEPS[name]
    assert sent(VERIFIER_LINK, "response", [frame]) == [frame]
    refused(replace(frame, **changed), complaint)
    refused(replace(frame, **changed), complaint, DRAFTER_LINK, "request")


LAW = (SparseRow((1, 2), (0.25, 0.75)),) * 2
DRAWN = DraftRow(
    1, DraftName(1, 1), 0, 9, DraftTree((1, 2), None, LAW, Proposal.SAMPLED), draft_ms=1.0
)
GROWN = DraftRow(
    2, DraftName(1, 1), 0, 9, DraftTree((1, 2, 3), (-1, 0, 0)), (0.5, 0.4, 0.1), b"345"
)
BOTH = draft_frame([DRAWN, GROWN])
DRAFT_COLUMNS = [name for name in DraftFrame.__annotations__ if name != "handles"]


@pytest.mark.parametrize("name", DRAFT_COLUMNS)
def test_a_column_of_drafts_that_is_too_long_is_refused(name):
    assert sent(DRAFTER_LINK, "response", [BOTH]) == [BOTH]
    told = getattr(BOTH, name)
    changed = replace(BOTH, **{name: told + b"\1"})
    refused(changed, f"DraftFrame.{name}: {len(told) + 1} bytes", DRAFTER_LINK)


BAD_DRAFTS = {
    "handles in part": ({"handles": b"123"}, "handles: 3 bytes"),
    "no opening": ({"openings": pack("I", [0, 1])}, "openings: they begin with 1"),
    "no kind": ({"kinds": b"\2\0"}, "kinds: one that is not known"),
    "another kind": ({"kinds": b"\2\x11"}, "kinds: one that is not known"),
    "a parent of its own": ({"parents": pack("h", [-1, 0, -1, 0, 2])}, "parents: one that is not"),
    "a parent below": ({"parents": pack("h", [-1, 0, -2, 0, 0])}, "parents: one that is not"),
    "a parent elsewhere": ({"parents": pack("h", [-1, 0, 0, 0, 0])}, "parents: one that is not"),
    "more than sure": ({"reach": pack("f", [1, 1, 1.1, 1, 1])}, "reach: one that is no chance"),
    "below nothing": ({"reach": pack("f", [1, 1, -0.5, 1, 1])}, "reach: one that is no chance"),
    "no number": ({"reach": pack("f", [1, 1, NAN, 1, 1])}, "reach: one that is no chance"),
    "a negative time": ({"draft_ms": pack("f", [-1, 0])}, "draft_ms: one that is no duration"),
    "rows of what was not drawn": (
        {"q_rows": pack("H", [0, 2])},
        "q_rows: of what was not sampled",
    ),
    "more rows than tokens": (
        {"counts": pack("H", [1, 4]), "parents": b""},
        "q_rows: more than tokens",
    ),
    "rows without lengths": ({"q_counts": b""}, "q_counts: 0 bytes for 2"),
    "lengths without rows": ({"q_rows": b""}, "q_counts: 4 bytes for 0"),
    "too few ids": ({"q_ids": b""}, "q_ids: 0 bytes for 4"),
    "too few chances": ({"q_probs": b""}, "q_probs: 0 bytes for 4"),
}


@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_drafts_that_cannot_be_are_refused_by_their_column(name):
    changed, complaint = BAD_DRAFTS[name]
    refused(replace(BOTH, **changed), complaint, DRAFTER_LINK)
    refused(replace(BOTH, **changed), complaint, VERIFIER_LINK, "request")


def test_a_frame_holds_a_bounded_number_of_sessions():
    few, many = (
        grants([(session, 1) for session in range(size)])
        for size in (MOST_SESSIONS, MOST_SESSIONS + 1)
    )
    assert sent(VERIFIER_LINK, "request", [few]) == [few]
    refused(many, f"Grants.handles: {MOST_SESSIONS + 1} sessions", way="request")


def test_limits_and_reasons_are_of_as_many_sessions():
    refused(Grants(b"1234", b""), "Grants.limits: 0 bytes", way="request")
    refused(w.Waiting(b"1234", b""), "Waiting.reasons: 0 bytes")


START = w.StartVerify(1, 1, "s", 1, (1,), (), 9, t.VerifyMode.GREEDY, t.ResolvedSampling(), 0, 4)


def _started(**changes):
    message = VERIFIER_LINK.encode_request([START])
    for name, value in changes.items():
        if value is None:
            message.commands[0].start.ClearField(name)
        else:
            setattr(message.commands[0].start, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (_started(sampling=None), "sampling is missing"),
        (_started(mode=99), "start.mode: unknown VerifyMode 99"),
        (_started(session_id=""), "session_id is empty"),
        (_started(opening=0), "StartVerify.opening: they begin with 1"),
        (
            verifier_pb2.VerifierServiceLinkRequest(commands=[verifier_pb2.VerifierCommand()]),
            "none of start, end, window",
        ),
    ],
)
def test_a_broken_command_is_refused_by_name(message, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        VERIFIER_LINK.decode_request(resent(message))


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (w.SessionStarted(1, 0), "SessionStarted.opening"),
        (w.SessionStarted(1, 1, 0, -1.0), "SessionStarted.prefill_ms"),
        (w.TextStates(1, 1, 0, bytes(2**20 + 1)), "TextStates.states"),
    ],
)
def test_a_broken_event_is_refused_by_name(event, complaint):
    refused(event, complaint)


@pytest.mark.parametrize("reason", [0, 99])
@pytest.mark.parametrize("codec", [VERIFIER_LINK, DRAFTER_LINK], ids=["verifier", "drafter"])
def test_a_session_that_is_gone_for_a_reason_of_a_newer_worker_may_go_on_elsewhere(codec, reason):
    message = codec.encode_response([w.SessionGone(1, 2, t.FailureReason.CAPACITY, "why")])
    message.events[0].gone.reason = reason
    [gone] = codec.decode_response(resent(message))
    assert gone == w.SessionGone(1, 2, t.FailureReason.INTERNAL, "why")


def test_a_session_that_waits_for_what_a_newer_worker_knows_waits_for_its_turn():
    told = w.Waiting(b"123412341234", bytes((1, 9, 0)))
    reasons = bytes((WaitReason.CREDIT, WaitReason.TURN, WaitReason.TURN))
    assert sent(VERIFIER_LINK, "response", [told]) == [told._replace(reasons=reasons)]


def test_what_may_not_wait_is_not_built():
    message = verifier_pb2.VerifierServiceLinkResponse()
    message.MergeFromString(b"\x0a\x00" * 65_537)
    with pytest.raises(ProtocolError, match="65537 in one message"):
        VERIFIER_LINK.decode_response(message)


# --- how batches are cut ------------------------------------------------------------------


def test_a_batch_too_large_for_one_message_leaves_in_several_and_in_order():
    length = MESSAGE_BYTES // 8
    batch = [replace(START, handle=n, prompt=(40_000,) * length) for n in range(5)]
    messages = list(VERIFIER_LINK.requests(batch))
    assert 1 < len(messages) < len(batch)
    assert all(message.ByteSize() <= MESSAGE_BYTES for message in messages)
    decoded = [VERIFIER_LINK.decode_request(resent(message))[1] for message in messages]
    assert [command for each in decoded for command in each] == batch


def test_what_is_too_large_alone_leaves_alone():
    large = replace(START, prompt=(40_000,) * (MESSAGE_BYTES // 2))
    small = w.EndSession(1)
    messages = list(VERIFIER_LINK.requests([small, large, small]))
    assert [len(VERIFIER_LINK.decode_request(one)[1]) for one in messages] == [1, 1, 1]


def test_states_leave_in_small_messages():
    laden = replace(LONE, states=(StepBytes(0, bytes(STATES_BYTES // 4 - 100)),))
    assert len(list(VERIFIER_LINK.responses([laden] * 32))) == 8


@pytest.mark.parametrize("text", [w.TextStates(3, 1, 0, b"12"), w.PromptScores(3, 1, 0, ())])
def test_no_step_overtakes_the_states_or_the_scores_of_a_text(text):
    started = w.SessionStarted(3, 1)
    messages = VERIFIER_LINK.responses([LONE, text, started, LONE, LONE, started])
    told = [VERIFIER_LINK.decode_response(resent(message)) for message in messages]
    assert told == [[LONE, text, started], [LONE, LONE, started]]


# --- hostile bytes ------------------------------------------------------------------------


KINDS = {
    verifier_pb2.VerifierServiceLinkRequest: WAYS["verifier commands"],
    verifier_pb2.VerifierServiceLinkResponse: WAYS["verifier events"],
    drafter_pb2.DrafterServiceLinkRequest: WAYS["drafter commands"],
    drafter_pb2.DrafterServiceLinkResponse: WAYS["drafter events"],
}


def _only_protocol_errors(kind, raw):
    codec, way, _ = KINDS[kind]
    try:
        message = kind.FromString(raw)
    except DecodeError:
        return
    with contextlib.suppress(ProtocolError):
        getattr(codec, f"decode_{way}")(message)


@given(st.sampled_from(list(KINDS)), st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_protocol_error(kind, raw):
    _only_protocol_errors(kind, raw)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_mangled_messages_raise_nothing_but_protocol_error(kind, data):
    codec, way, records = KINDS[kind]
    raw = bytearray(getattr(codec, f"encode_{way}")([data.draw(records)]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _only_protocol_errors(kind, bytes(raw))
