"""The model drafter: what it feeds, what it proposes, on a fake engine and on real models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.model_state import ModelSession
from tests.services.drafter_kit import (
    COUPLED,
    PROMPT,
    VOCAB,
    FakeEngine,
    Harness,
    followed,
    holds_as_if_fresh,
    plain_text,
    real_engine,
    said_in_rounds,
    tokens_of,
)
from tests.tries import tries

MOVES = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 4),
        st.lists(st.integers(0, VOCAB - 1), max_size=2),
    ),
    max_size=10,
)


# --- on a fake engine: every token fed once -------------------------------------


def test_drafts_are_the_draft_models_greedy_continuation():
    harness = Harness()
    drafts = harness.drafts()
    assert tokens_of(drafts) == harness.engine.continuation([1, 2, 3], 6)
    assert {draft.tree.proposal for draft in drafts} == {t.Proposal.ONE_HOT}
    assert harness.engine.forwards == [[3], [1], [1], [1], [1], [1]]


def test_a_rejection_feeds_the_correction_alone():
    harness = Harness()
    tail = tokens_of(harness.drafts())
    text = [*tail[:2], (tail[2] + 1) % VOCAB]
    drafts = [*harness.answered(0, text), *harness.run()]
    assert tokens_of(drafts) == harness.engine.continuation([1, 2, 3, *text], 6)
    assert harness.engine.forwards[0] == [1]


def test_a_verifier_ahead_is_caught_up_in_one_step():
    harness = Harness()
    harness.drafts(window=1)
    drafts = harness.answered(0, [5, 6, 7, 8])
    assert tokens_of(drafts) == harness.engine.continuation([1, 2, 3, 5, 6, 7, 8], 1)
    assert harness.engine.forwards == [[4]]


@tries(150)
@given(st.data())
def test_every_draft_follows_from_the_text_and_kv_is_a_prefix_of_it(data):
    engine = FakeEngine()
    harness = Harness(engine, step_tokens=data.draw(st.integers(1, 8)))
    harness.open("s", [1, 2, 3], window=data.draw(st.integers(1, 5)))
    for before, draft in followed(harness, data.draw(MOVES)):
        assert all(token == engine.greedy(before) for token in draft.tree.token_ids)


def test_the_target_as_its_own_drafter_is_never_rolled_back():
    engine = FakeEngine()
    harness = Harness(engine)
    harness.open("s", [4, 5])
    truth = engine.continuation([4, 5], 60)
    committed, drafted = 0, []
    while committed < 60:
        drafted += tokens_of(harness.run())
        assert drafted == truth[: len(drafted)]
        block = min(len(drafted) - committed + 1, 60 - committed)
        harness.say("s", committed, truth[committed : committed + block])
        committed += block
        drafted = truth[: max(len(drafted), committed)]
    assert engine.caches[0].rolled_back == 0


def test_sessions_are_batched_and_draft_what_they_draft_alone():
    harness = Harness()
    prompts = {"a": [1], "b": [2, 3], "c": [4, 5, 6]}
    for session, prompt in prompts.items():
        harness.open(session, prompt)
    drafts = harness.run()
    assert harness.engine.forwards[:2] == [[1, 2, 3], [1, 1, 1]]
    for session, prompt in prompts.items():
        assert tokens_of(drafts, session) == harness.engine.continuation(prompt, 6)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"mode": t.VerifyMode.COUPLED, "sampling": COUPLED},
        {"num_candidates": 2},
        {"logit_bias": ((3, 50.0),)},
        {"vocab_size": VOCAB - 1},
        {"min_tokens": 4, "stop_token_ids": tuple(range(0, VOCAB, 2))},
    ],
    ids=lambda own: next(iter(own), "plain"),
)
def test_the_highest_logits_of_all_at_once_are_what_each_session_drafts(monkeypatch, parameters):
    at_once = [(own.tree, own.final) for own in Harness().drafts(**parameters)]
    monkeypatch.setattr(ModelSession, "argmax", lambda *_: False)
    assert at_once == [(own.tree, own.final) for own in Harness().drafts(**parameters)]


def test_a_long_prompt_enters_in_chunks_while_others_draft():
    harness = Harness(step_tokens=8)
    harness.open()
    harness.core.step()
    harness.engine.forwards.clear()
    harness.open("long", [1] * 20)
    drafts = harness.run()
    assert harness.engine.forwards[:3] == [[1, 7], [1, 7], [1, 6]]
    assert tokens_of(drafts, "long") == harness.engine.continuation([1] * 20, 6)


def test_sessions_that_draft_are_not_held_back_by_the_budget_of_prompts():
    harness = Harness(step_tokens=2)
    for session in "abcd":
        harness.open(session, [1, 2])
    drafts = harness.run()
    assert harness.engine.forwards[:6] == [[2], [1] * 2, [1] * 2, [1] * 3, [1] * 3, [1] * 4]
    for session in "abcd":
        assert tokens_of(drafts, session) == harness.engine.continuation([1, 2], 6)


def test_a_drafted_stop_token_ends_the_draft():
    harness = Harness()
    ahead = harness.engine.continuation([1, 2], 6)
    stop = ahead[3]
    drafts = harness.drafts([1, 2], stop_token_ids=(stop, VOCAB + 5))
    assert tokens_of(drafts) == ahead[: ahead.index(stop) + 1]
    assert drafts[-1].final


def test_a_full_kv_budget_refuses_a_session_and_a_close_makes_room():
    harness = Harness()
    for session in "abc":
        harness.open(session, [1], max_tokens=499)
    [(name, gone)] = harness.gone.items()
    assert (name, gone.reason) == ("c", t.FailureReason.CAPACITY)
    harness.close("a")
    assert harness.engine.kv_tokens_used == 500
    assert harness.core.progress().kv_tokens_used == 500


def test_a_prompt_the_draft_model_cannot_take_is_refused():
    harness = Harness(FakeEngine(context=10))
    harness.open("long", [1] * 11)
    harness.open("foreign", [VOCAB])
    assert [gone.reason for gone in harness.gone.values()] == [t.FailureReason.INVALID] * 2


def test_drafting_ends_where_the_draft_models_context_ends():
    drafts = Harness(FakeEngine(context=6)).drafts()
    assert len(tokens_of(drafts)) == 4
    assert drafts[-1].final


def test_a_committed_token_outside_the_vocabulary_ends_drafting_quietly():
    harness = Harness()
    harness.drafts([1, 2])
    (draft,) = harness.answered(0, [VOCAB + 1])
    assert (draft.tree.token_ids, draft.final) == ((), True)


def test_a_failing_forward_closes_only_the_session_that_fails_alone():
    harness = Harness()
    harness.engine.explode = 9
    harness.open("good", [1, 2])
    harness.open("bad", [3, 9])
    harness.core.step()
    assert list(harness.gone) == ["bad"]
    harness.engine.explode = None
    assert tokens_of(harness.run(), "good") == harness.engine.continuation([1, 2], 6)


def test_the_worker_is_bound_to_its_model():
    worker = ModelDrafter(FakeEngine()).describe(t.WorkerDescription("m", None))
    assert (worker.model, worker.vocab_size, worker.kv_capacity_tokens) == ("fake", VOCAB, 1000)


# --- on real tiny models ---------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "mistral"])
def engine(request):
    return real_engine(request.param)


def test_a_real_model_drafts_its_greedy_text_beside_others(engine):
    harness = Harness(engine, step_tokens=16)
    prompts = {"a": PROMPT, "b": PROMPT[:7], "c": [5]}
    for session, prompt in prompts.items():
        harness.open(session, prompt)
    drafts = harness.run()
    for session, prompt in prompts.items():
        assert tokens_of(drafts, session) == plain_text(engine, prompt, 6)
    harness.core.drop_link(0)
    assert engine.kv_tokens_used == 0


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_kv_after_commits_and_rollbacks_equals_a_fresh_prefill(engine, mode, candidates):
    harness = Harness(engine, step_tokens=16)
    harness.open("s", PROMPT, mode=mode, sampling=COUPLED, num_candidates=candidates)

    def right(committed):
        return plain_text(engine, PROMPT + committed, 6, mode, COUPLED, len(committed))

    rounds = (0, 3, 6, 1, 5, 2)
    committed = said_in_rounds(harness, rounds, 6, right if mode.exact_match else None)
    holds_as_if_fresh(engine, harness.state.cache, PROMPT + committed)
    harness.core.drop_link(0)
