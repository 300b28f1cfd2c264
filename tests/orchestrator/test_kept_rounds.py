"""What the store keeps of a round is what is told of it later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.replies import session_round
from orchestrator.session.ports import StoredRound, StoredSession
from orchestrator.session.round_records import dump_round, load_round, session_rounds
from orchestrator.session.spec_record import dump_spec
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Commit, SourceCount
from services.contract.types import Origin, SessionStatus, VerifyMode
from tests.orchestrator.request_kit import NOTHING, TOLD, round_record, sampled
from tests.orchestrator.text_kit import tokenizer

RECORD = round_record(round=3, rejected=(3, 4), unjudged=(5,))
COMMIT = Commit((RECORD,), 1, (1, 2, 6), (Origin.ACCEPTED, Origin.ACCEPTED, Origin.RECOVERED))
WALL = 1_700_000_000.0
"""Unix time of the driver's zero."""
WORDS = tokenizer()


_JOINED = b'[1, 4, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "GREEDY", [], [], [], %s]'
_SAID = b'[1, 4, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "GREEDY", [], [], %s]'


def stored_round(record: bytes) -> StoredRound:
    return StoredRound(term=1, round=3, base_len=1, tokens=3, record=record)


def told_rounds(*args) -> list[pb.SessionRound]:
    """What is told in the end, without the steps on the way."""
    return [session_round(one) for one in session_rounds(*args) if one is not None]


def stored(committed: tuple[int, ...]) -> StoredSession:
    spec = sampled(temperature=0.0)
    counts = {"prompt_len": len(spec.prompt), "committed_len": len(committed)}
    begun = {"status": SessionStatus.ACTIVE, "term": 1, "owner": "o", "seed": 1}
    ended = {"finish_reason": None, "matched_stop": None, "created_ms": 0, "lease_until_ms": 0}
    text = {"resolved": dump_spec(spec), "prompt": spec.prompt, "committed": committed}
    other = {"digest": "", "target_fingerprint": "", "ephemeral": False}
    return StoredSession(**begun, **text, **counts, **ended, **other)


def test_a_round_is_read_as_it_was_written():
    read = load_round(stored_round(dump_round(COMMIT, WALL, ephemeral=False)), COMMIT.token_ids)
    started = WALL + 100
    kept = RECORD._replace(started_at=started, ended_at=started + 0.0635)
    assert read == COMMIT._replace(records=(kept,))


SOURCES = (SourceCount(1, 3, 2), SourceCount(5, 1, 0))
FROM_SOURCES = COMMIT._replace(records=(RECORD._replace(sources=SOURCES),))
ODD = RECORD._replace(
    draft_ms=1.23456,
    queue_ms=0,
    rejected=(),
    unjudged=(),
    mode=VerifyMode.BLOCK,
    bad_q_rows=2,
)
BEGINNING = b'[2,4,2,false,1700000100037.12,8.5,60.0,1.25,63.5,2,"d1","v1","COUPLED"'
ODD_BEGINNING = b'[2,4,2,true,1700000100037.12,1.23,60.0,0,63.5,2,"d1","v1","BLOCK"'


@pytest.mark.parametrize(
    ("commit", "ephemeral", "record"),
    [
        (COMMIT, False, BEGINNING + b",[3,4],[5]]"),
        (COMMIT, True, BEGINNING + b"]"),
        (FROM_SOURCES, False, BEGINNING + b",[3,4],[5],[[1,3,2],[5,1,0]]]"),
        (FROM_SOURCES, True, BEGINNING + b",[],[],[[1,3,2],[5,1,0]]]"),
        (Commit((ODD,), 1, (1,), (Origin.BONUS,)), False, ODD_BEGINNING + b",[],[]]"),
        (Commit((ODD,), 1, (1,), (Origin.BONUS,)), True, ODD_BEGINNING + b"]"),
    ],
)
def test_a_record_is_written_as_every_version_wrote_it(commit, ephemeral, record):
    assert dump_round(commit, WALL + 0.0371234, ephemeral=ephemeral) == record


def test_a_rule_of_a_later_version_is_not_told():
    record = BEGINNING.replace(b"COUPLED", b"LATER") + b"]"
    [told] = told_rounds(stored((9, 1, 2, 6)), [stored_round(record)], tokenizer(), 0)
    assert told.stats.rejection_sample_method == pb.REJECTION_SAMPLE_METHOD_UNSPECIFIED
    assert (told.stats.draft_tokens, told.started_unix_ms) == (4, 1700000100037.12)


@given(st.integers(0, 10**15))
def test_the_time_of_a_round_is_told_as_it_was_written(hundredths):
    started = hundredths / 100
    record = b"[1,2,1,true,%s]" % str(started).encode()
    [told] = told_rounds(stored(()), [stored_round(record)], WORDS, 0)
    assert told.started_unix_ms == started


@pytest.mark.parametrize("ephemeral", [False, True])
def test_where_the_tokens_came_from_is_kept_whatever_the_session(ephemeral):
    record = dump_round(FROM_SOURCES, WALL, ephemeral=ephemeral)
    kept = load_round(stored_round(record)).record
    assert kept.sources == SOURCES
    assert kept.rejected == (() if ephemeral else (3, 4))
    totals = SpecTotals()
    totals.add(kept)
    assert totals.by_source == {1: (3, 2), 5: (1, 0)}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff",
        b"7",
        b"[",
        b'{"draft_tokens": 3}',
        b"[-1]",
        b"[1, -1]",
        b"[1, 1, 2]",
        b"[1, 99999999]",
        b"[1, 2, 2, true, NaN]",
        b"[1, 2, 2, true, Infinity]",
        b"[1, 2, 2, true, 0, 0, 0, 0, 0, 1, 7]",
        b'[1, 2, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "BLOCK", [4294967296]]',
        b'[1, 2, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "BLOCK", 5]',
        _SAID % b"[[1, 2, 3]]",
        _SAID % b"[[256, 2, 1]]",
        _SAID % b"[[1, 2]]",
        _SAID % b"7",
        b"[" * 100_000,
        _JOINED % b"[[2], [2]]",
        _JOINED % b"[[-1], [4]]",
        _JOINED % b"[[1, -1], [2]]",
        _JOINED % b"[[1, 1, 1, 2], [2]]",
        _JOINED % b"[[1], [1], [1], [0]]",
        _JOINED % b"[[], [3]]",
        _JOINED % b"[1, 2]",
        _JOINED % b"7",
    ],
)
def test_a_record_that_cannot_be_believed_says_nothing(record):
    nothing = NOTHING._replace(round=3, base_len=1, emitted_tokens=3)
    assert load_round(stored_round(record)) == Commit((nothing,), 1, (), ())


def test_a_round_is_told_with_the_text_of_every_token():
    words = tokenizer()
    session = stored((9, 1, 2, 6))
    record = dump_round(COMMIT, WALL, ephemeral=False)
    [told] = told_rounds(session, [stored_round(record)], words, 0)
    assert (told.term, told.offset, told.started_unix_ms) == (1, 1, 1e3 * (WALL + 100))
    assert list(told.token_ids) == [1, 2, 6]
    accepted, recovered = pb.TOKEN_ORIGIN_ACCEPTED, pb.TOKEN_ORIGIN_RECOVERED
    assert list(told.origins) == [accepted, accepted, recovered]
    assert list(told.rejected) == [words.decode((3,)), words.decode((4,))]
    assert list(told.unjudged) == [words.decode((5,))]
    assert len(told.pieces) == 3
    assert told.stats == pb.RoundStats(
        index=3, rejection_sample_method=pb.REJECTION_SAMPLE_METHOD_COUPLED, **TOLD
    )


def test_rounds_before_the_offset_are_left_out():
    record = dump_round(COMMIT, WALL, ephemeral=False)
    assert told_rounds(stored((9, 1, 2, 6)), [stored_round(record)], tokenizer(), 2) == []


def test_a_round_whose_text_is_gone_is_told_without_it():
    told = told_rounds(stored(()), [stored_round(b"")], tokenizer(), 0)
    assert [(list(one.token_ids), one.stats.emitted_tokens) for one in told] == [([], 3)]


# --- several rounds in one commit ----------------------------------------------------

SECOND = round_record(
    round=4, base_len=4, draft_tokens=2, accepted_tokens=0, emitted_tokens=1, rejected=(8, 9),
    started_at=100.1, ended_at=100.17, drafter="", sources=(SourceCount(5, 2, 0),),
)  # fmt: skip
THIRD = round_record(
    round=5, base_len=5, draft_tokens=1, accepted_tokens=1, emitted_tokens=2, rejected=(),
    started_at=100.2, ended_at=100.25,
)  # fmt: skip
TOGETHER = Commit(
    (RECORD, SECOND, THIRD),
    *(1, (1, 2, 6, 5, 7, 8)),
    (*COMMIT.origins, Origin.RECOVERED, Origin.ACCEPTED, Origin.BONUS),
)


def together(ephemeral: bool = False) -> StoredRound:
    return StoredRound(1, 5, 1, 6, dump_round(TOGETHER, WALL, ephemeral=ephemeral))


def test_each_round_of_a_commit_is_read_as_it_was_decided():
    read = load_round(together(), TOGETHER.token_ids)
    assert read._replace(records=TOGETHER.records) == TOGETHER
    for own, was in zip(read.records, TOGETHER.records, strict=True):
        times = {"started_at": own.started_at, "ended_at": own.ended_at}
        assert own == was._replace(**times)
        assert own.started_at == pytest.approx(WALL + was.started_at)


def test_an_ephemeral_commit_keeps_no_text_of_any_of_its_rounds():
    read = load_round(together(ephemeral=True))
    assert [one.rejected for one in read.records] == [(), (), ()]
    assert [one.sources for one in read.records] == [one.sources for one in TOGETHER.records]


def test_a_reader_of_0_2_sees_the_rounds_of_a_commit_as_one():
    whole = together().record.rpartition(b",[[3,")[0] + b"]"
    read = load_round(StoredRound(1, 5, 1, 6, whole)).record
    sums = (read.draft_tokens, read.accepted_tokens, read.emitted_tokens, read.verify_ms)
    assert sums == (7, 3, 6, 180.0)
    assert read.round_ms == pytest.approx(250.0)
    assert read.rejected == (3, 4, 8, 9)
    assert read.sources == (SourceCount(5, 2, 0),)


def test_of_a_commit_only_rounds_from_the_offset_on_are_told():
    session = stored((9, 1, 2, 6, 5, 7, 8))
    for offset, indices in ((0, [3, 4, 5]), (2, [4, 5]), (4, [4, 5]), (5, [5]), (6, [])):
        told = told_rounds(session, [together()], WORDS, offset)
        assert [one.stats.index for one in told] == indices
    [second, third] = told_rounds(session, [together()], WORDS, 4)
    assert (list(second.token_ids), second.offset) == ([5], 4)
    assert (list(third.token_ids), list(third.origins)) == (
        [7, 8],
        [pb.TOKEN_ORIGIN_ACCEPTED, pb.TOKEN_ORIGIN_BONUS],
    )
    assert list(third.pieces) == [WORDS.decode((7,)), WORDS.decode((8,))]
