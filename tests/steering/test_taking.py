"""What becomes of the steps that a verifier took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.steering import events
from orchestrator.steering.config import Phase, TextStop
from orchestrator.steering.events import Emit, Finish, Persist, Release
from orchestrator.steering.rounds import Ending, SourceCount
from services.contract.frames import DraftName
from services.contract.types import (
    DraftSource,
    FinishReason,
    LogprobRow,
    Origin,
    ResolvedSampling,
    Role,
    VerifyMode,
)
from tests.steering.made import BONUS, NONE, RECOVERED, Made

A, R, B = Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS


def _persisted(made: Made) -> list:
    return [action.commit for action in made.performed(Persist)]


def test_steps_of_one_interval_are_one_commit_with_a_record_of_each():
    made = Made().serve()
    first = made.row(1, 2, 9, accepted=2, judged=(1, 2, 3), end=RECOVERED, draft_ms=2.0)
    second = made.row(4, position=3)
    third = made.row(5, 6, position=4, accepted=2, end=NONE, near_ties=1, queue_ms=2.0)
    made.rows(first, second, third, at=7.0)
    [commit] = _persisted(made)
    assert (commit.base_len, commit.token_ids) == (0, (1, 2, 9, 4, 5, 6))
    assert commit.origins == (A, A, R, B, A, A)
    assert [(r.round, r.base_len, r.emitted_tokens) for r in commit.records] == [
        (1, 0, 3),
        (2, 3, 1),
        (3, 4, 2),
    ]
    one, two, three = commit.records
    assert (one.draft_tokens, one.accepted_tokens, one.rejected) == (3, 2, (3,))
    assert (one.drafter, two.drafter, one.verifier) == ("d", "", "v")
    assert (one.draft_ms, one.verify_ms, one.batch_size, one.epoch) == (2.0, 6.0, 3, 1)
    assert (three.near_ties, three.queue_ms, three.round_ms) == (1, 2.0, 8.0)
    assert (one.started_at, one.ended_at) == (pytest.approx(6.994), 7.0)


def test_rounds_began_one_behind_the_other_though_a_frame_was_read_late():
    made = Made().serve().take(1, at=7.0).stored()
    made.rows(made.row(2, queue_ms=1.0), made.row(3, position=2), at=7.002).stored()
    made.take(4, at=7.003)
    records = [record for commit in _persisted(made) for record in commit.records]
    assert [record.ended_at for record in records] == [7.0, 7.002, 7.002, 7.003]
    assert [1e3 * (record.started_at - 7.0) for record in records] == pytest.approx(
        [-6.0, -5.0, -4.0, -3.0]
    )


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_a_round_is_recorded_with_the_rule_that_judged_it(mode):
    [commit] = _persisted(Made(mode).serve().take(5))
    assert commit.record.mode is mode


def test_what_comes_while_a_commit_is_on_its_way_is_joined_to_the_next_one():
    made = Made().serve().take(1).take(2).take(3, 4)
    assert [commit.token_ids for commit in _persisted(made)] == [(1,)]
    made.stored()
    assert [commit.token_ids for commit in _persisted(made)] == [(1,), (2, 3, 4)]
    assert [record.round for record in _persisted(made)[1].records] == [2, 3]
    assert [action.commit.token_ids for action in made.performed(Emit)] == [(1,)]
    made.stored()
    assert [action.commit.token_ids for action in made.performed(Emit)] == [(1,), (2, 3, 4)]


def test_an_answer_of_the_store_that_came_before_says_nothing_new():
    made = Made().serve().take(1).stored().take(2)
    made.feed(events.Persisted(0.0, 1))
    assert len(made.performed(Emit)) == 1


# --- what does not fit ----------------------------------------------------------------


def test_how_much_of_the_prompt_was_cached_is_known_though_a_step_came_first():
    made = Made().attach(Role.VERIFIER, "v").take(5)
    made.feed(events.Started(0.0, Role.VERIFIER, "v", 1, cached_tokens=1))
    assert (made.state.cached_tokens, made.state.committed) == (1, (5,))


def test_a_step_that_was_taken_is_not_taken_twice():
    made = Made().serve()
    row = made.row(1, 2)
    made.rows(row, row).rows(row)
    assert made.state.committed == (1, 2)
    assert made.performed(Release) == []


def test_a_step_of_a_former_verifier_or_opening_is_dropped():
    made = Made().serve()
    row = made.row(1)
    made.rows(row, worker="other").rows(row._replace(opening=0))
    made.lose().start(Role.VERIFIER, "v").rows(row)
    assert made.state.committed == ()


def test_a_verifier_that_leaves_tokens_out_is_left_with_what_it_said_before():
    made = Made().serve()
    made.rows(made.row(1), made.row(3, position=2), made.row(4, position=3))
    assert made.state.committed == (1,)
    assert made.performed(Release) == [Release(Role.VERIFIER, "v")]
    assert made.state.verifiers.failures == 1
    assert made.verifies()[-1].opening == 1


LOGPROBS = ResolvedSampling(max_tokens=99, logprobs=1)
ROW = LogprobRow(-0.5, (3,), (-0.25,))


@pytest.mark.parametrize(
    ("sampling", "rows", "fits"),
    [
        (LOGPROBS, (ROW,), True),
        (LOGPROBS, (), False),
        (LOGPROBS, (ROW, ROW), False),
        (LOGPROBS, (replace(ROW, logprob=0.5),), False),
        (LOGPROBS, (replace(ROW, top_token_ids=(100,)),), False),
        (LOGPROBS, (replace(ROW, top_token_ids=(3, 4), top_logprobs=(-1.0, -2.0)),), False),
        (ResolvedSampling(max_tokens=99), (ROW,), False),
        (ResolvedSampling(max_tokens=99), (), True),
    ],
)
def test_logprobs_are_there_if_and_only_if_they_were_asked_for(sampling, rows, fits):
    made = Made(sampling=sampling).serve().take(5, logprobs=rows)
    assert (made.state.committed == (5,)) is fits
    assert (made.state.verifier is not None) is fits
    if fits:
        assert _persisted(made)[0].logprobs == rows


# --- endings --------------------------------------------------------------------------


def _ended(made: Made) -> tuple[tuple[int, ...], Ending]:
    """The text and its ending, once all is stored."""
    assert made.state.phase is Phase.FINISHING
    assert made.performed(Finish) == []
    while made.state.storing is not None:
        made.stored()
    assert made.state.phase is Phase.DONE
    text = tuple(token for (commit,) in made.performed(Emit) for token in commit.token_ids)
    assert text == made.state.committed
    [finish] = made.performed(Finish)
    assert type(made.actions[-1]) is Finish
    return text, finish.ending


def test_the_length_limit_cuts_a_step_and_what_came_behind_it():
    made = Made(sampling=ResolvedSampling(max_tokens=3)).serve()
    made.rows(made.row(1, 2), made.row(3, 4, 5, position=2, accepted=2), made.row(6, position=5))
    assert made.performed(Release) == [Release(Role.VERIFIER, "v"), Release(Role.DRAFTER, "d")]
    assert _ended(made) == ((1, 2, 3), Ending(FinishReason.LENGTH))
    [commit] = _persisted(made)
    assert [record.emitted_tokens for record in commit.records] == [2, 1]
    assert commit.origins == (B, B, A)


def test_a_stop_token_ends_the_output_and_stays_in_it():
    made = Made(sampling=ResolvedSampling(max_tokens=9, stop_token_ids=(3, 4))).serve()
    made.take(1).take(2).rows(made.row(4, 3, 5, accepted=2))
    assert _ended(made) == ((1, 2, 4), Ending(FinishReason.STOP, 4))


def test_a_stop_token_at_the_length_limit_is_a_stop():
    made = Made(sampling=ResolvedSampling(max_tokens=2, stop_token_ids=(3,))).serve().take(1, 3, 4)
    assert _ended(made)[1] == Ending(FinishReason.STOP, 3)


def test_a_stop_string_is_found_across_steps_that_wait_for_the_store():
    asked = []

    def find(tokens: tuple[int, ...]) -> TextStop | None:
        asked.append(tokens)
        return TextStop(tokens.index(5) + 1, "five") if 5 in tokens else None

    made = Made(find_stop=find).serve().take(1).take(2).take(3)
    made.rows(made.row(4, 5, 6, accepted=1, judged=(4, 8), end=RECOVERED))
    assert asked == [(1,), (2,), (2, 3), (2, 3, 4, 5, 6)]
    assert _ended(made) == ((1, 2, 3, 4, 5), Ending(FinishReason.STOP, "five"))
    assert _persisted(made)[-1].origins[-2:] == (A, R)


def test_a_later_word_of_a_verifier_changes_no_ending():
    made = Made(sampling=ResolvedSampling(max_tokens=1)).serve().take(1)
    made.feed(events.AbortRequested(0.0)).lose().rows(made.row(2, opening=1, position=1))
    assert _ended(made) == ((1,), Ending(FinishReason.LENGTH))


def test_an_abort_ends_it_at_once():
    made = Made().serve().take(1).take(2).feed(events.AbortRequested(0.0))
    assert made.state.phase is Phase.DONE
    assert made.actions[-1] == Finish(Ending(FinishReason.ABORT))
    assert made.performed(Release) == [Release(Role.VERIFIER, "v"), Release(Role.DRAFTER, "d")]
    made.feed(events.Persisted(0.0, 1))
    assert made.performed(Emit) == []


# --- what was drafted -----------------------------------------------------------------


def test_of_a_tree_the_accepted_path_is_told_from_the_rest():
    made = Made(num_candidates=2).serve()
    made.take(2, 4, 9, accepted=2, judged=(1, 2, 3, 4), path=(1, 3), end=BONUS)
    [commit] = _persisted(made)
    assert commit.record.rejected == (1, 3)
    assert commit.origins == (A, A, B)


def test_sources_are_counted_as_the_drafter_names_them():
    made = Made().serve()
    sources = bytes((DraftSource.LAWS, DraftSource.MODEL, DraftSource.LAWS))
    made.take(1, 9, accepted=1, judged=(1, 2, 3), end=RECOVERED, sources=sources)
    laws, model = int(DraftSource.LAWS), int(DraftSource.MODEL)
    assert _persisted(made)[0].record.sources == (
        SourceCount(laws, 2, 1),
        SourceCount(model, 1, 0),
    )


@pytest.mark.parametrize(
    ("method", "source"),
    [("model", DraftSource.MODEL), ("ngram", 0), ("eagle", DraftSource.EAGLE), ("a,b", 0)],
)
def test_a_drafter_that_says_no_sources_drafts_from_its_method(method, source):
    [commit] = _persisted(Made(method=method).serve().take(1, 2, accepted=1))
    assert commit.record.sources == (SourceCount(source, 1, 1),)


def test_a_source_that_nobody_knows_is_unspecified():
    [commit] = _persisted(Made().serve().take(1, 2, accepted=1, sources=b"\xff"))
    assert commit.record.sources == (SourceCount(0, 1, 1),)


@pytest.mark.parametrize(
    ("name", "drafter"), [(DraftName(), "v"), (DraftName(1, 5), "d"), (DraftName(7, 0), "")]
)
def test_a_round_names_who_drafted_it(name, drafter):
    [commit] = _persisted(Made().serve().take(1, accepted=1, name=name, end=NONE))
    assert commit.record.drafter == drafter


def test_what_was_asked_for_is_asked_of_both_workers():
    made = Made(VerifyMode.BLOCK, num_candidates=3, committed=(4,)).serve()
    [verify], [draft] = made.verifies(), made.drafts()
    config = made.state.config
    assert (verify.handle, verify.session_id, verify.term) == (9, "s", 1)
    assert (verify.window, verify.depth, verify.output) == (config.largest_block, 4, (4,))
    assert (verify.drafted_for, verify.num_candidates) == (False, 3)
    assert (draft.window, draft.num_candidates, draft.output) == (4, 3, (4,))
    assert (draft.method, draft.vocab_size) == ("model", 100)
