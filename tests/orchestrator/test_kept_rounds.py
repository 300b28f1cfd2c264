"""What the store keeps of a round is what is told of it later."""

from __future__ import annotations

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.core.events import Commit, SourceCount
from orchestrator.frontdoor.requests import dump_spec
from orchestrator.session.ports import StoredRound, StoredSession
from orchestrator.session.resume import count_round
from orchestrator.session.totals import SpecTotals
from orchestrator.store.round_records import KeptRound, dump_round, load_round, session_rounds
from services.contract.types import Origin, SessionStatus
from tests.orchestrator.request_kit import round_record, sampled
from tests.orchestrator.text_kit import tokenizer

RECORD = round_record(round=3, rejected=(3, 4), unjudged=(5,))
COMMIT = Commit(RECORD, 1, (1, 2, 6), (Origin.ACCEPTED, Origin.ACCEPTED, Origin.RECOVERED))
WALL = 1_700_000_000.0
"""Unix time of the driver's zero."""


_SAID = b'[1, 4, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "GREEDY", [], [], %s]'


def stored_round(record: bytes) -> StoredRound:
    return StoredRound(term=1, round=3, base_len=1, tokens=3, record=record)


def told_rounds(*args) -> list[pb.SessionRound]:
    """What is told in the end, without the steps on the way."""
    return [one for one in session_rounds(*args) if one is not None]


def stored(committed: tuple[int, ...]) -> StoredSession:
    spec = sampled(temperature=0.0)
    counts = {"prompt_len": len(spec.prompt), "committed_len": len(committed)}
    begun = {"status": SessionStatus.ACTIVE, "term": 1, "owner": "o", "request": b"", "seed": 1}
    ended = {"finish_reason": None, "matched_stop": None, "created_ms": 0, "lease_until_ms": 0}
    text = {"resolved": dump_spec(spec), "prompt": spec.prompt, "committed": committed}
    other = {"digest": "", "target_fingerprint": "", "ephemeral": False}
    return StoredSession(**begun, **text, **counts, **ended, **other)


def test_a_round_is_read_as_it_was_written():
    kept = load_round(dump_round(COMMIT, WALL, ephemeral=False))
    assert kept.started_ms == 1e3 * (WALL + 100)
    assert (kept.draft_tokens, kept.accepted_tokens, kept.bonus) == (4, 2, False)
    assert (kept.rejected, kept.unjudged) == ((3, 4), (5,))
    assert (kept.verify_ms, kept.round_ms, kept.mode) == (60.0, 63.5, "COUPLED")


def test_of_an_ephemeral_session_no_token_is_kept():
    record = dump_round(COMMIT, WALL, ephemeral=True)
    kept = load_round(record)
    assert (kept.draft_tokens, kept.rejected, kept.unjudged) == (4, (), ())


@pytest.mark.parametrize("ephemeral", [False, True])
def test_where_the_tokens_came_from_is_kept_whatever_the_session(ephemeral):
    said = (SourceCount(1, 3, 2), SourceCount(5, 1, 0))
    commit = COMMIT._replace(record=RECORD._replace(sources=said))
    record = dump_round(commit, WALL, ephemeral=ephemeral)
    kept = load_round(record)
    assert kept.sources == said
    assert kept.rejected == (() if ephemeral else (3, 4))
    totals = SpecTotals()
    count_round(totals, stored_round(record))
    assert totals.by_source == {1: (3, 2), 5: (1, 0)}


def test_a_round_of_the_version_before_has_no_sources():
    assert load_round(dump_round(COMMIT, WALL, ephemeral=False)).sources == ()


@pytest.mark.parametrize(
    "record",
    [
        *b'|\xff|7|[|{"draft_tokens": 3}|[-1]|[1, -1]|[1, 1, 2]|[1, 99999999]'.split(b"|"),
        b"[1, 2, 2, true, NaN]",
        b"[1, 2, 2, true, Infinity]",
        b"[1, 2, 2, true, 0, 0, 0, 0, 0, 1, 7]",
        b'[1, 2, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "BLOCK", [4294967296]]',
        b'[1, 2, 2, true, 0, 0, 0, 0, 0, 1, "d", "v", "BLOCK", 5]',
        *(_SAID % counts for counts in (b"[[1, 2, 3]]", b"[[256, 2, 1]]", b"[[1, 2]]", b"7")),
        b"[" * 100_000,
    ],
)
def test_a_record_that_cannot_be_believed_says_nothing(record):
    assert load_round(record) == KeptRound()


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
    stats = told.stats
    assert (stats.index, stats.epoch, stats.emitted_tokens, stats.batch_size) == (3, 2, 3, 2)
    assert (stats.draft_tokens, stats.accepted_tokens) == (4, 2)
    assert stats.rejection_sample_method == pb.REJECTION_SAMPLE_METHOD_COUPLED
    assert (stats.drafter, stats.verifier) == ("d1", "v1")
    assert (stats.round_ms, stats.verify_ms, stats.queue_ms, stats.draft_ms) == (
        pytest.approx((63.5, 60.0, 1.25, 8.5))
    )


def test_rounds_before_the_offset_are_left_out():
    record = dump_round(COMMIT, WALL, ephemeral=False)
    assert told_rounds(stored((9, 1, 2, 6)), [stored_round(record)], tokenizer(), 2) == []


def test_a_round_whose_text_is_gone_is_told_without_it():
    told = told_rounds(stored(()), [stored_round(b"")], tokenizer(), 0)
    assert [(list(one.token_ids), one.stats.emitted_tokens) for one in told] == [([], 3)]
