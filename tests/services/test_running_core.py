"""A verifier that runs its sessions: whatever drafts come when, the text is the target's."""

import random

import pytest
import torch

from services.contract import types as t
from services.contract.frames import StepEnd, StepFrame, WaitReason
from services.contract.states import StateShape
from services.contract.types import FailureReason
from services.contract.worker_messages import (
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    SetWindow,
    TextStates,
    Waiting,
)
from services.engine import noise
from services.engine.noise import Stream
from services.engine.sampling import ties
from services.runtime.proposer import LocalDraft
from services.scheduling.draft_budget import FIXED, DraftBudget
from services.scheduling.offers import Allotment
from tests.fake_engine import FakeEngine, law
from tests.services.running_bench import (
    COUPLED,
    EXACT,
    PROMPT,
    TEXT,
    VOCAB,
    Fixed,
    Running,
    draft,
    limit,
    of_kind,
    only,
    other,
    start,
    text_of,
)

SAMPLED, ROW = t.Proposal.SAMPLED, t.SparseRow((1, 2), (0.5, 0.5))


def wild_drafts(text, seed):
    """Frames for an output that is said so far: good, bad, late, early, doubled, of other names."""
    rng = random.Random(seed)
    number, last = 0, None

    def drafts(output):
        nonlocal number, last
        if last is not None and rng.random() < 0.2:
            return [last]
        number += rng.random() < 0.5
        at = rng.randrange(max(0, len(output) - 3), len(output) + 2)
        tail = [
            token if rng.random() < 0.85 else rng.randrange(VOCAB)
            for token in text[at : at + rng.randrange(1, 6)]
        ]
        before = [*text[:at]]
        if rng.random() < 0.1 and before:
            before[-1] = other(before[-1])
        parents = None
        if rng.random() < 0.3:
            parents = tuple(rng.randrange(-1, node) for node in range(len(tail)))
        tree = t.DraftTree(tuple(tail), parents).normal() if tail else t.DraftTree((1,))
        last = draft((), tuple(before), number, tree=tree)
        return [last]

    return drafts


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("seed", range(12))
def test_any_drafts_at_any_time_give_the_targets_text(mode, seed):
    sampling = {"temperature": 0.8, "top_k": 6} if mode is COUPLED else {}
    command = start(mode=mode, max_tokens=40, **sampling)
    text = text_of(command, 40)
    table, drafts = Running(), wild_drafts(text, seed)
    table.step(command)
    accepted = 0
    for _ in range(60):
        table.during = [drafts(table.output())]
        accepted += sum(row.accepted for row in table.step(*drafts(table.output())))
    assert table.output() == text
    assert accepted > 5


def test_penalties_bias_and_limits_are_heeded_along_drafts():
    law_ = {"frequency_penalty": 0.7, "logit_bias": ((3, 1.5),), "bad_words": ((1,), (2, 4))}
    for mode in EXACT:
        command = start(mode=mode, min_tokens=25, stop_token_ids=(0, 3, 5), **law_)
        plain = Running()
        plain.run(command)
        text = plain.output()
        assert len(text) >= 25
        table, drafts = Running(), wild_drafts(text, 5)
        table.step(command)
        accepted = sum(
            row.accepted for _ in range(60) for row in table.step(*drafts(table.output()))
        )
        assert table.output() == text
        assert accepted


# --- a step ---------------------------------------------------------------------------


def test_the_first_token_comes_with_the_last_of_the_prompt():
    table = Running()
    events = table.run(start(), steps=1)
    assert [type(event) for event in events] == [SessionStarted, StepFrame]
    assert table.engine.forwards == [[len(PROMPT)]]


def test_a_draft_is_told_with_what_became_of_it():
    table = Running()
    table.step(start())
    table.clock.now += 0.5
    table.give(draft([*TEXT[1:3], other(TEXT[3])], TEXT[:1], draft_ms=3.0, sources=b"\5\5\6"))
    table.clock.now += 0.25
    [row] = table.step()
    assert (row.position, row.tokens, row.accepted) == (1, TEXT[1:4], 2)
    assert row.judged == (*TEXT[1:3], other(TEXT[3]))
    assert (row.end, tuple(row.name), row.sources) == (StepEnd.RECOVERED, (1, 1), b"\5\5\6")
    assert (row.draft_ms, row.age_ms, row.queue_ms) == pytest.approx((3.0, 250.0, 750.0))
    [row] = table.step()
    assert (row.tokens, row.accepted, row.judged, row.name) == (TEXT[4:5], 0, (), (0, 0))
    assert row.end is StepEnd.BONUS


def test_a_tree_is_told_with_the_path_that_was_accepted():
    table = Running()
    table.step(start())
    tokens = (other(TEXT[1]), TEXT[1], 0, TEXT[2])
    table.give(draft((), TEXT[:1], tree=t.DraftTree(tokens, (-1, -1, 0, 1))))
    [row] = table.step()
    assert (row.tokens, row.accepted, row.path, row.judged) == (TEXT[1:4], 2, (1, 3), tokens)


def test_a_draft_goes_on_over_several_steps_and_k_v_is_always_that_of_the_text():
    table = Running()
    table.step(start(window=2))
    table.give(draft(TEXT[1:8], TEXT[:1]))
    for size in (4, 7, 9):
        table.step()
        assert table.output() == TEXT[:size]
        [cache] = table.engine.caches
        assert cache.tokens == [*PROMPT, *TEXT[: size - 1]]


def test_the_output_ends_at_its_length_and_never_goes_beyond_it():
    for drafted in ((), TEXT[1:9], (*TEXT[1:3], other(TEXT[3]), 0, 0)):
        table = Running()
        table.step(start(max_tokens=5))
        table.run(draft(drafted or (0,), TEXT[:1]))
        assert table.output() == TEXT[:5]


@pytest.mark.parametrize("mode", EXACT)
def test_a_choice_that_nobody_hears_is_no_near_tie(mode, monkeypatch):
    """Every choice is one here, also that behind the draft which reaches the length."""
    monkeypatch.setattr(ties, "ROUNDING", {"float32": 1e3})
    command = start(mode=mode, max_tokens=4)
    text, table = text_of(command, 4), Running()
    table.step(command)
    [row] = table.step(draft(text[1:], text[:1]))
    assert (row.tokens, row.end, row.near_ties) == (text[1:], StepEnd.NONE, 3)


def test_nothing_follows_a_stop_whoever_said_it():
    stop = TEXT[6]
    first = TEXT.index(stop)
    for drafted in ((0,), TEXT[1:12], TEXT[1 : first + 1]):
        table = Running()
        table.step(start(stop_token_ids=(stop,)))
        table.run(draft(drafted, TEXT[:1]))
        assert table.output() == TEXT[: first + 1]


def test_an_output_that_ended_before_it_was_opened_gets_no_token():
    table = Running()
    table.run(start(output=TEXT[:7], stop_token_ids=(TEXT[6],)))
    assert table.output() == ()
    assert table.core.progress().sessions == 1


def test_logprobs_and_rows_of_the_target_come_with_the_tokens():
    table = Running()
    table.step(start(logprobs=3, top_rows=4, temperature=0.5, mode=COUPLED))
    text = text_of(start(mode=COUPLED, temperature=0.5), 5)
    [row] = table.step(draft(text[1:3], text[:1]))
    assert len(row.logprobs) == len(row.tokens) == 3
    expected = torch.log_softmax(law([*PROMPT, *text[:2]]), -1)[text[2]]
    assert row.logprobs[1].logprob == pytest.approx(float(expected), abs=1e-5)
    assert row.top_rows


def test_logprobs_of_a_tree_follow_the_accepted_path():
    table = Running()
    table.step(start(logprobs=0))
    tree = t.DraftTree((other(TEXT[1]), TEXT[1]), (-1, -1))
    [row] = table.step(draft((), TEXT[:1], tree=tree))
    expected = [
        float(torch.log_softmax(law([*PROMPT, *TEXT[:i]]), -1)[TEXT[i]]) for i in range(1, 3)
    ]
    assert [own.logprob for own in row.logprobs] == pytest.approx(expected, abs=1e-6)
    assert row.logprobs[0].top_token_ids == ()


def test_the_description_says_what_the_verifier_can_do():
    worker = Running().core.describe()
    assert worker.role is t.Role.VERIFIER
    assert worker.capabilities == ("tree", "coupled", "greedy", "token_limits", "states", "scores")
    assert (worker.model_fingerprint, worker.vocab_size) == ("fake-fingerprint", VOCAB)
    assert (worker.hidden_layers, worker.hidden_width) == (4, 3)


def test_tracing_learns_of_each_part_of_a_step():
    records = []
    table = Running(on_step=records.append)
    table.step(start(opening=3))
    table.clock.now += 0.5
    table.step(draft(TEXT[1:3], TEXT[:1]))
    first, second = [own.entries for own in records]
    assert [(own.kind, own.tokens) for own in first] == [
        ("prefill", len(PROMPT) - 1),
        ("verify", 0),
    ]
    [own] = second
    assert (own.session, own.kind, own.tokens) == ("s1", "verify", 2)
    assert (own.opening, own.position, own.queue_ms) == (3, 1, pytest.approx(500.0))


# --- the last row, where drafts are drawn -----------------------------------------------


class Counts(FakeEngine):
    """Is sure that each token is one more than the one before it."""

    def logits(self, text):
        row = torch.full((VOCAB,), -1000.0)
        row[(text[-1] + 1) % VOCAB] = 0.0
        return row


def drawn(*tokens):
    rows = tuple(t.SparseRow((token, (token + 5) % VOCAB), (0.5, 0.5)) for token in tokens)
    return t.DraftTree(tokens, None, rows, SAMPLED)


DRAWN = pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])


@DRAWN
def test_a_token_that_came_during_a_plain_step_is_judged_by_its_row(mode):
    for token, end in ((1, StepEnd.NONE), (3, StepEnd.RECOVERED)):
        table = Running(Counts())
        table.step(start(mode=mode, prompt=(0,), temperature=1.0, limit=0))
        table.during = [[draft((), (), tree=drawn(token, 2))]]
        [row] = table.step(limit(40))
        assert (row.tokens, row.judged, tuple(row.name)) == ((1,), (token,), (1, 1))
        assert (row.accepted, row.end) == (int(token == 1), end)
        [row] = table.step()
        assert (row.position, row.judged) == (1, (2,) if token == 1 else ())


@DRAWN
def test_the_last_row_judges_what_follows_the_verified_tokens(mode):
    table = Running(Counts())
    table.step(start(mode=mode, prompt=(0,), temperature=1.0, window=2, limit=0))
    table.give(draft((), (), tree=drawn(1, 2)), limit(40))
    table.during = [[draft((), (1, 2), tree=drawn(3, 4))]]
    [row] = table.step()
    assert (row.tokens, row.judged, row.end) == ((1, 2, 3), (1, 2, 3), StepEnd.NONE)
    [row] = table.step()
    assert (row.tokens, row.judged, row.end) == ((4, 5), (4,), StepEnd.BONUS)


@DRAWN
def test_what_another_draft_says_behind_the_verified_tokens_is_left_to_the_next_step(mode):
    table = Running(Counts())
    table.step(start(mode=mode, prompt=(0,), temperature=1.0, limit=0))
    table.give(draft((), (), tree=drawn(1)), limit(40))
    table.during = [[draft((), (), number=2, tree=drawn(1, 2, 3))]]
    [row] = table.step()
    assert (row.tokens, row.judged, row.end) == ((1, 2), (1,), StepEnd.BONUS)
    [row] = table.step()
    assert (row.tokens, row.judged, tuple(row.name)) == ((3, 4), (3,), (1, 2))


@pytest.mark.parametrize("mode", EXACT)
def test_where_drafts_are_matched_exactly_the_target_speaks_for_itself(mode):
    table = Running(Counts())
    table.step(start(mode=mode, prompt=(0,), limit=0))
    table.during = [[draft((1, 2), ())]]
    [row] = table.step(limit(40))
    assert (row.tokens, row.judged, row.end) == ((1,), (), StepEnd.BONUS)


@DRAWN
def test_no_number_is_drawn_twice_in_a_sessions_life(mode, monkeypatch):
    keys = []

    def uniform(*key):
        keys.append(key)
        return noise.uniform(*key)

    monkeypatch.setattr("services.verifier.running.turns.uniform", uniform)
    rng = random.Random(3)
    table = Running(FakeEngine(capacity=400), prefix_cache_tokens=0)
    output, opening = (), 1
    for number in range(120):
        if number % 30 == 0:
            opening += 1
            output = table.output(opening=opening - 1) or output
            table.give(
                start(mode=mode, opening=opening, output=output, temperature=1.0, max_tokens=300)
            )
        said = table.output(opening=opening) or output
        tokens = [rng.randrange(VOCAB) for _ in range(4)]
        early = [draft((), said, number * 2, tree=drawn(*tokens[:2]))]
        table.during = [[draft((), (*said, *tokens[:2]), number * 2, tree=drawn(*tokens[2:]))]]
        table.step(*early * (number % 3 > 0))
    assert len(keys) > 200
    assert len(set(keys)) == len(keys)
    assert {key[1] for key in keys} >= {Stream.ACCEPT, Stream.RESIDUAL, Stream.BONUS}


# --- credit ---------------------------------------------------------------------------


def test_a_session_rests_at_its_limit_and_goes_on_with_a_higher_one():
    table = Running()
    table.run(start(limit=3))
    assert table.output() == TEXT[:3]
    assert not table.run(limit(3))
    table.run(limit(2), limit(5))
    assert table.output() == TEXT[:5]


def test_what_was_judged_is_never_cut_by_the_limit():
    table = Running()
    table.step(start(limit=2))
    table.run(draft(TEXT[1:7], TEXT[:1]))
    assert table.output() == TEXT[:8]


def test_grants_of_others_change_nothing():
    table = Running()
    table.run(start(limit=2))
    table.run(limit(9, handle=2))
    table.run(limit(9), link=2)
    assert table.output() == TEXT[:2]


# --- frames that are late, doubled, foreign or wrong --------------------------------------


def test_a_draft_that_came_during_the_forward_is_cut_by_what_that_said():
    table = Running()
    table.step(start())
    table.during = [[draft(TEXT[1:5], TEXT[:1])]]
    table.step()
    [row] = table.step()
    assert (row.judged, row.accepted) == (TEXT[2:5], 3)


def test_drafts_for_nobody_and_of_no_sense_are_nothing():
    table = Running()
    table.step(start(window=4))
    wrong = [
        draft(TEXT[1:3], TEXT[:1], handle=7),
        draft([VOCAB, 1], TEXT[:1], number=2),
        draft((), TEXT[:1], number=3, tree=t.DraftTree((1, 2), (1, -1))),
        draft((), TEXT[:1], number=4, tree=t.DraftTree((1, 2), None, (ROW,), SAMPLED)),
        draft(TEXT[1:3], TEXT[:1], opening=0),
    ]
    table.give(*wrong)
    table.give(draft(TEXT[1:3], TEXT[:1]), link=2)
    [row] = table.step()
    assert (row.tokens, row.judged) == (TEXT[1:2], ())


def test_a_draft_that_cannot_be_taken_costs_its_session_and_says_so():
    class Broken(Fixed):
        def drafted(self, key, tokens, ms, final):
            if tokens == 2:
                raise RuntimeError("broken")

    table = Running(pacing=Broken())
    table.step(start(1), start(2, prompt=(7,)))
    events = table.run(draft(TEXT[1:3], TEXT[:1]), draft((0,), (0,), handle=2))
    gone = only(SessionGone, events)
    assert (gone.handle, gone.reason) == (1, FailureReason.INTERNAL)
    assert len(table.output(2)) == 40


def test_drafts_that_the_orchestrator_gave_up_are_stale():
    table = Running()
    table.step(start(first_drafts=3))
    [row] = table.step(draft(TEXT[1:3], TEXT[:1], opening=2))
    assert row.judged == ()
    [row] = table.step(draft(TEXT[2:4], TEXT[:2], opening=3))
    assert row.accepted == 2


def test_an_engine_without_trees_is_given_none():
    class Chains(FakeEngine):
        capabilities = frozenset()

    table = Running(Chains())
    table.step(start())
    [row] = table.step(draft((), TEXT[:1], tree=t.DraftTree((1, 2), (-1, -1))))
    assert row.judged == ()


def test_the_window_falls_and_rises_no_further_than_at_the_opening():
    table = Running()
    table.step(start(window=3))
    table.give(draft(TEXT[1:12], TEXT[:1]), SetWindow(1, 1))
    assert [table.step()[0].accepted for _ in range(2)] == [1, 1]
    table.give(SetWindow(1, 9))
    assert table.step()[0].accepted == 3
    table.give(SetWindow(1, 0))
    assert table.step()[0].judged == ()


def test_a_drafter_hears_how_far_to_be_ahead_once_and_when_that_changes():
    table = Running()
    frames = [
        only(StepFrame, table.run(*commands, steps=1)).windows
        for commands in ((start(window=5),), (), (SetWindow(1, 2),), ())
    ]
    assert frames == [b"\5", b"", b"\2", b""]


def test_a_drafter_that_comes_later_and_one_of_another_window_hear_it_too():
    table = Running()
    frames = [
        only(StepFrame, table.run(*commands, steps=1)).windows
        for commands in (
            (start(window=5, drafted_for=False),),
            (SetDraftedFor(1, True),),
            (),
            (SetDraftedFor(1, False),),
            (SetDraftedFor(1, True),),
            (),
            (SetWindow(1, 5),),
        )
    ]
    assert frames == [b"", b"\5", b"", b"", b"\5", b"", b"\5"]


# --- sessions that come, come again and go ------------------------------------------------


def test_a_session_goes_on_behind_what_was_received():
    table = Running()
    events = table.run(start(output=TEXT[:5], opening=2))
    assert only(SessionStarted, events).opening == 2
    assert table.output(opening=2) == TEXT


def test_a_higher_opening_replaces_a_session_and_others_change_nothing():
    table = Running()
    table.run(start(limit=4))
    assert not of_kind(StepFrame, table.run(start(limit=9)))
    again = start(output=TEXT[:2], opening=3, limit=6)
    rows = table.step(again)
    assert [(row.opening, row.position) for row in rows] == [(3, 2)]


def test_a_session_that_has_started_says_so_again():
    table = Running()
    table.run(start(limit=1))
    assert only(SessionStarted, table.run(start(limit=1))).opening == 1


def test_an_ended_session_is_gone_without_a_word_and_its_k_v_with_it():
    table = Running(prefix_cache_tokens=0)
    table.run(start(limit=4))
    assert table.engine.kv_tokens_used > 0
    assert table.run(EndSession(1), EndSession(1)) == []
    assert (table.engine.kv_tokens_used, table.core.progress().sessions) == (0, 0)


def test_a_session_that_ends_or_begins_anew_during_the_forward_brings_nothing():
    table = Running()
    table.step(start())
    table.during = [[EndSession(1)]]
    assert table.step() == []
    table.step(start(opening=2))
    table.during = [[start(opening=3, output=TEXT[:1])]]
    assert table.step() == []
    assert table.step()[0].opening == 3


@pytest.mark.parametrize("parents", [None, (-1, -1, 0, 1)])
def test_a_session_that_ends_during_the_forward_leaves_its_text_and_not_its_draft(parents):
    table = Running()
    table.run(start(limit=20, cache_scope="a"))
    tokens = (other(TEXT[20]), TEXT[20], 0, 1)
    table.during = [[EndSession(1)]]
    table.step(limit(40), draft((), TEXT[:20], tree=t.DraftTree(tokens, parents)))
    prompt = (*PROMPT, *TEXT[:20], 5, 6, 7)
    events = table.run(start(2, prompt=prompt, cache_scope="a"))
    assert only(SessionStarted, events).cached_tokens >= len(PROMPT) + 16
    assert table.output(2) == text_of(start(prompt=prompt), 40)


def test_a_wide_window_says_no_more_at_once_than_a_frame_can_hold():
    table = Running(FakeEngine(context=2000))
    command = start(window=400, max_tokens=600)
    text = text_of(command, 600)
    table.step(command)
    [row] = table.step(draft(text[1:401], text[:1]))
    assert (row.accepted, len(row.tokens)) == (254, 255)
    table.run()
    assert table.output() == text


def test_several_links_get_a_frame_each_and_none_sees_anothers_sessions():
    table = Running()
    table.give(start(1), start(2, prompt=(7, 7)), link=1)
    table.give(start(1, prompt=(3,)), link=2)
    assert table.core.step()
    frames = {link: event for link, event in table.events if isinstance(event, StepFrame)}
    assert {link: frame.size for link, frame in frames.items()} == {1: 2, 2: 1}
    assert {(frame.step, frame.sessions) for frame in frames.values()} == {(1, 3)}
    table.core.drop_link(1)
    assert table.core.progress().sessions == 1
    table.run()
    assert table.output(1, link=2) == text_of(start(prompt=(3,)), 40)


def test_many_sessions_are_in_one_forward():
    table = Running()
    commands = [start(handle, prompt=(handle, 2, 3)) for handle in range(1, 9)]
    table.run(*commands)
    for command in commands:
        assert table.output(command.handle) == text_of(command, 40)
    assert max(map(len, table.engine.forwards)) == 8


# --- who waits ------------------------------------------------------------------------


def waiting(table, seconds=1.0):
    table.clock.now += seconds
    table.core.patience()
    found = of_kind(Waiting, table.taken())
    return {
        int.from_bytes(own.handles[4 * i : 4 * i + 4], "little"): WaitReason(reason)
        for own in found
        for i, reason in enumerate(own.reasons)
    }


def test_who_takes_no_part_is_told_with_the_reason():
    table = Running()
    table.run(start(1, limit=2), start(2, max_tokens=3, prompt=(4, 4)))
    waiting(table)
    assert waiting(table) == {1: WaitReason.CREDIT, 2: WaitReason.ENDED}
    table.step(limit(40))
    assert waiting(table) == {2: WaitReason.ENDED}


def test_a_frame_counts_who_stood_out():
    table = Running()
    table.run(start(1, limit=2), start(2, limit=2, prompt=(4, 4)))
    frame = only(StepFrame, table.run(limit(3), steps=1))
    assert frame.stood_out[WaitReason.CREDIT - 1] == sum(frame.stood_out) == 1


def test_a_core_with_nothing_to_do_rests_until_it_tells_who_waits():
    table = Running()
    table.run(start(limit=2))
    table.core.patience()
    rest = table.core.patience()
    assert 0 < rest <= 0.25
    table.give(limit(9))
    assert table.core.patience() == 0


class Holding(Fixed):
    """Holds whoever has no two tokens."""

    def allot(self, offers):
        return [
            Allotment(own.tokens) if own.tokens > 1 else Allotment(0, hold_s=0.02) for own in offers
        ]


def test_a_session_that_is_held_waits_for_its_draft_and_no_longer_than_it_may():
    table = Running(pacing=Holding())
    table.step(start())
    assert table.step() == []
    assert table.core.patience() == pytest.approx(0.02)
    table.give(draft(TEXT[1:2], TEXT[:1]))
    assert table.step() == []
    table.clock.now += 0.01
    [row] = table.step(draft(TEXT[2:3], TEXT[:2]))
    assert (row.accepted, row.hold_ms) == (2, pytest.approx(10.0))
    assert table.step() == []
    table.clock.now += 0.021
    assert table.core.patience() == 0
    [row] = table.step()
    assert row.tokens == TEXT[4:5]


class Whole(Fixed):
    """Verifies one token a step, and keeps whether nothing more was to come."""

    def __init__(self, window=None):
        self.final, self.ahead = [], window

    def allot(self, offers):
        self.final += [own.final for own in offers]
        return [Allotment(min(1, own.tokens)) for own in offers]

    def window(self, _, most):
        return self.ahead or most


def finals(opening, first, *, window=None, steps=3):
    """Whether each step knows that nothing follows its draft, which came for the first one."""
    pacing = Whole(window)
    table = Running(pacing=pacing)
    table.step(opening)
    pacing.final.clear()
    table.step(draft(first, TEXT[:1]))
    for _ in range(steps - 1):
        table.step()
    return pacing.final


def test_a_step_does_not_wait_for_what_cannot_follow_a_draft():
    assert finals(start(window=20), TEXT[1:10]) == [False, False, False]
    assert finals(start(window=20, max_tokens=10), TEXT[1:10]) == [True, True, True]
    assert finals(start(window=20, max_tokens=10), TEXT[1:9]) == [False, False, False]
    stop = next(place for place in range(7, 20) if TEXT[place] not in TEXT[:place])
    stops = start(window=30, stop_token_ids=(TEXT[stop],))
    assert finals(stops, TEXT[1 : stop + 1]) == [True, True, True]
    assert finals(stops, TEXT[1:stop]) == [False, False, False]


def test_a_draft_as_long_as_its_drafter_was_told_is_waited_for_no_longer():
    assert finals(start(window=20), TEXT[1:10], window=5, steps=4) == [*[True] * 3, False]


def test_where_nobody_drafts_nothing_is_waited_for():
    pacing = Whole()
    table = Running(pacing=pacing)
    table.step(start(drafted_for=False))
    table.step(SetDraftedFor(1, True))
    table.step(SetDraftedFor(1, False))
    assert pacing.final == [False, True]


# --- room, turns, failures ----------------------------------------------------------------


def test_sessions_that_give_their_k_v_up_keep_text_and_draft():
    preempted = []
    table = Running(
        FakeEngine(capacity=420), prefix_cache_tokens=0, on_preempt=lambda: preempted.append(1)
    )
    commands = [start(handle, prompt=(handle, 1), max_tokens=150) for handle in (1, 2, 3)]
    table.give(*commands)
    for _ in range(300):
        table.step(
            *[
                draft(
                    text_of(own, 150)[at : at + 2],
                    text_of(own, 150)[:at],
                    number=at,
                    handle=own.handle,
                )
                for own in commands
                if 0 < (at := len(table.output(own.handle))) < 20
            ]
        )
        if len(table.output(1)) == 150:
            table.give(EndSession(1))
    assert preempted
    table.give(EndSession(1))
    table.run()
    for own in commands:
        assert table.output(own.handle) == text_of(own, 150)[: len(table.output(own.handle))]
        assert len(table.output(own.handle)) > 100


def test_a_step_takes_no_more_rows_than_it_may_and_everybody_has_a_turn():
    table = Running(max_step_tokens=4)
    commands = [start(handle, prompt=(handle, 1)) for handle in range(1, 9)]
    table.run(*commands, steps=12)
    before = [len(table.output(own.handle)) for own in commands]
    for _ in range(8):
        assert len(table.step()) <= 4
    after = [len(table.output(own.handle)) for own in commands]
    assert [b - a for a, b in zip(before, after, strict=True)] == [4] * 8


def test_a_broken_forward_costs_one_session_its_place():
    table = Running(FakeEngine(explode=11))
    table.run(start(1, limit=3), start(2, limit=3, prompt=(7,)))
    events = table.run(
        draft([11], text_of(start(2, prompt=(7,)), 3), handle=2), limit(9), limit(9, 2)
    )
    gone = only(SessionGone, events)
    assert (gone.handle, gone.opening, gone.reason) == (2, 1, FailureReason.INTERNAL)
    assert table.output(1) == TEXT[:9]


def test_the_reservation_holds_whatever_a_session_may_ask_for():
    engine = FakeEngine(capacity=len(PROMPT) + 10 + 4, context=len(PROMPT) + 10)
    table = Running(engine)
    table.step(start(max_tokens=10, window=4))
    for number in range(1, 20):
        said = table.output()
        if len(said) == 10:
            break
        tail = [*TEXT[len(said) : 10], 0, 0, 0, 0][:4]
        table.step(draft(tail, said, number))
    assert table.output() == TEXT[:10]


def test_a_model_that_says_nothing_fails_one_session():
    table = Running(FakeEngine(poison=[*PROMPT, *TEXT[:2]]))
    events = table.run(start(1), start(2, prompt=(7,)))
    assert only(SessionGone, events).handle == 1
    assert table.output(1) == TEXT[:2]
    assert len(table.output(2)) == 40


def test_what_was_decided_leaves_before_its_session_fails(monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr("services.verifier.running.outcome.logprobs", broken)
    table = Running()
    events = table.run(start(1, logprobs=1), start(2, prompt=(7,)), steps=1)
    kinds = [type(event) for event in events if not isinstance(event, SessionStarted)]
    assert kinds == [StepFrame, SessionGone]
    assert table.output(1) == TEXT[:1]


@pytest.mark.parametrize(
    "wrong",
    [{"prompt": (VOCAB,)}, {"output": tuple(range(5)), "max_tokens": 4}, {"term": 1 << 16}],
)
def test_a_session_that_cannot_be_served_is_refused(wrong):
    table = Running()
    gone = only(SessionGone, table.run(start(**wrong)))
    assert (gone.handle, gone.reason) == (1, FailureReason.INVALID)


def test_a_session_without_room_is_refused_with_capacity():
    table = Running(FakeEngine(capacity=20))
    assert only(SessionGone, table.run(start())).reason is FailureReason.CAPACITY


# --- prompts --------------------------------------------------------------------------


def test_a_long_prompt_is_read_in_shares_beside_the_others():
    table = Running(max_step_tokens=16)
    table.step(start(1))
    table.run(start(2, prompt=PROMPT * 20))
    assert table.output(1) == TEXT
    assert table.output(2) == text_of(start(prompt=PROMPT * 20), 40)
    assert max(map(sum, table.engine.forwards)) <= 16 + 8


def test_a_shared_beginning_is_read_once():
    table = Running()
    table.run(start(1, prompt=PROMPT * 10, cache_scope="a", limit=1))
    events = table.run(start(2, prompt=(*PROMPT * 10, 7), cache_scope="a"))
    assert only(SessionStarted, events).cached_tokens >= 48
    assert table.output(2) == text_of(start(prompt=(*PROMPT * 10, 7)), 40)


def test_scores_of_a_prompt_come_before_it_has_started_and_nothing_after():
    table = Running()
    prompt = PROMPT * 3
    events = table.run(start(prompt=prompt, score_from=4, prompt_logprobs=1))
    assert [type(event) for event in events] == [PromptScores, SessionStarted]
    scores = events[0]
    assert (scores.position, len(scores.rows)) == (4, len(prompt) - 4)
    expected = torch.log_softmax(law(prompt[:4]), -1)[prompt[4]]
    assert scores.rows[0].logprob == pytest.approx(float(expected), abs=1e-5)
    assert table.core.progress().sessions == 0


# --- states -----------------------------------------------------------------------------


def test_states_are_told_of_each_token_once():
    table = Running()
    events = table.run(start(state_layers=(1, 3), limit=1), steps=1)
    width = 2 * 2 * FakeEngine.hidden_width
    places = {}
    for event in of_kind(TextStates, events):
        for row in range(len(event.states) // width):
            places[event.position + row] = event.states[row * width : (row + 1) * width]
    [row] = table.rows_of(events)
    rows = [row]
    rows += table.step(limit(9), draft(TEXT[1:3], TEXT[:1]))
    rows += table.step(draft([TEXT[4], other(TEXT[5])], TEXT[:4], number=2))
    for row in rows:
        assert len(row.states) == width * len(row.tokens)
        for i in range(len(row.tokens)):
            place = len(PROMPT) + row.position + i - 1
            assert place not in places
            places[place] = row.states[i * width : (i + 1) * width]
    text = [*PROMPT, *table.output()]
    assert sorted(places) == list(range(len(text) - 1))
    for place, own in places.items():
        wanted = table.engine.state(text[: place + 1]).bfloat16().view(torch.int16)
        assert own == wanted.numpy().astype("<i2").tobytes()


# --- drafting here --------------------------------------------------------------------------


class Knows:
    """Proposes what the target says."""

    capabilities = ("local:known", "known:tree")
    recalled_tokens = 0
    layers = ()

    def __init__(self):
        self.asked, self.opened, self.closed = [], [], []

    def open(self, key, opening):
        self.opened.append((key, opening.method))

    def close(self, key):
        self.closed.append(key)

    def needed_states(self, method):
        return StateShape(self.layers)

    def propose(self, asks):
        self.asked.append(asks)
        return [self._draft(own) for own in asks]

    def _draft(self, ask):
        at = len(ask.text) - len(PROMPT)
        return LocalDraft(t.DraftTree(TEXT[at : at + min(3, ask.room)]), sources=b"")

    def anchor(self, key, position, states):
        raise AssertionError

    def idle(self, asks):
        return False


def test_a_local_method_drafts_in_the_step_without_any_message():
    proposer = Knows()
    table = Running(proposer=proposer)
    table.step(start(method="known"), start(2, prompt=(7,)))
    rows = {row.handle: row for row in table.step()}
    assert (rows[1].accepted, rows[1].name) == (3, (0, 0))
    assert rows[2].judged == ()
    table.run()
    assert table.output() == TEXT
    keys = [own.draft_key for asks in proposer.asked for own in asks]
    assert len(set(keys)) == len(keys)
    table.run(EndSession(1), EndSession(2))
    assert (proposer.opened, proposer.closed) == ([((1, 1), "known")], [(1, 1)])
    told = table.core.describe()
    assert told.capabilities[-2:] == ("local:known", "known:tree")
    assert (told.protocol_min, told.protocol_max) == (2, 2)


def test_a_local_method_is_anchored_at_the_states_that_it_needs():
    class Anchored(Knows):
        layers = (1, 3)

        def __init__(self):
            super().__init__()
            self.places = []

        def anchor(self, key, position, states):
            width = 2 * len(self.layers) * FakeEngine.hidden_width
            self.places += range(position, position + len(states) // width)

    proposer = Anchored()
    table = Running(proposer=proposer)
    events = table.run(start(method="known"))
    assert proposer.places == list(range(len(PROMPT) + 40 - 1))
    assert not of_kind(TextStates, events)
    assert not any(row.states for row in table.rows_of(events))


def test_a_drafters_draft_comes_before_one_of_the_verifiers_own():
    proposer = Knows()
    table = Running(proposer=proposer)
    table.step(start(method="known"))
    [row] = table.step(draft(TEXT[1:2], TEXT[:1]))
    assert (row.accepted, row.name, proposer.asked) == (1, (1, 1), [])


@pytest.mark.parametrize("drafted_for", [False, True])
def test_who_waits_for_whole_drafts_waits_for_none_that_the_verifier_finds_nothing_for(drafted_for):
    class Mute(Knows):
        def _draft(self, ask):
            return LocalDraft()

    table = Running(proposer=Mute(), pacing=DraftBudget())
    # The clock stands still, so that whoever waits waits for ever.
    table.run(start(method="known", pacing=FIXED, drafted_for=drafted_for))
    assert table.output() == (TEXT[:1] if drafted_for else TEXT)


def test_an_orchestrator_hears_that_a_verifier_rests_that_drafts_by_itself():
    ahead = 5

    class Rests(Fixed):
        def window(self, _, most):
            return ahead

    table = Running(proposer=Knows(), pacing=Rests())
    table.give(start(method="known", drafted_for=False), start(2, prompt=(7,), drafted_for=False))
    for ahead, told in ((5, b"\5\5"), (5, b""), (0, b"\0\0"), (0, b""), (5, b"\5\5")):  # noqa: B007
        assert only(StepFrame, table.run(steps=1)).windows == told


def test_a_proposer_that_fails_costs_its_drafts_alone():
    class Broken(Knows):
        def propose(self, asks):
            raise RuntimeError("broken")

    table = Running(proposer=Broken())
    table.run(start(method="known"))
    assert table.output() == TEXT


def test_a_proposer_that_fails_between_steps_costs_its_drafts_alone():
    class Broken(Knows):
        def idle(self, asks):
            raise RuntimeError("broken")

    table = Running(proposer=Broken())
    table.run(start(method="known"))
    assert table.output() == TEXT


# --- who is drafted for -------------------------------------------------------------------


def waits(table):
    """Whether the one session is held back; the clock of the table stands still."""
    return not table.step()


def test_who_nobody_drafts_for_waits_for_no_draft():
    table = Running(pacing=DraftBudget())
    table.run(start(pacing=FIXED, drafted_for=False))
    assert table.output() == TEXT


def test_a_whole_draft_is_waited_for_as_long_as_a_drafter_has_the_session():
    table = Running(pacing=DraftBudget())
    table.step(start(pacing=FIXED, drafted_for=False))
    assert not waits(table)
    table.give(SetDraftedFor(1, True))
    assert waits(table)
    table.step(draft(TEXT[2:4], TEXT[:2], final=True))
    assert table.output() == TEXT[:5]
    assert waits(table)
    table.give(SetDraftedFor(1, False))
    table.run()
    assert table.output() == TEXT


def test_what_a_drafter_left_behind_is_verified_without_waiting():
    table = Running(pacing=Fixed())
    table.step(start(drafted_for=True, limit=9))
    table.give(draft(TEXT[1:4], TEXT[:1]), SetDraftedFor(1, False))
    [row] = table.step()
    assert row.accepted == 3


def test_a_verifier_that_drafts_by_itself_is_paced_as_was_asked_for():
    class Pacings(Fixed):
        def __init__(self):
            self.asked = set()

        def allot(self, offers):
            self.asked |= {own.pacing for own in offers}
            return super().allot(offers)

    for own, asked in (({"method": "known"}, {FIXED}), ({}, {""})):
        table = Running(pacing=(pacings := Pacings()), proposer=Knows())
        table.run(start(pacing=FIXED, drafted_for=False, **own))
        assert pacings.asked == asked


def test_a_proposer_that_fails_is_waited_for_by_nobody():
    class Broken(Knows):
        def propose(self, asks):
            raise RuntimeError("broken")

    table = Running(proposer=Broken(), pacing=DraftBudget())
    table.run(start(method="known", pacing=FIXED, drafted_for=False))
    assert table.output() == TEXT


def test_a_word_of_a_drafter_for_nobody_changes_nothing():
    table = Running()
    table.run(start(limit=2))
    assert not of_kind(StepFrame, table.run(SetDraftedFor(2, True), SetDraftedFor(1, False)))
    assert table.output() == TEXT[:2]
