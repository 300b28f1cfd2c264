"""The look-ahead drafter: several tokens a forward, and nothing of it stays in KV."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import (
    LATER_FORMATS,
    FailureReason,
    Proposal,
    ResolvedSampling,
    VerifyMode,
)
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.engine.native import NativeEngine
from services.engine.noise import Stream, uniform
from services.engine.port import Segment
from services.engine.sampling import History, RowContext, choose, top_law
from services.engine.spec import ModelSpec
from tests.models import tiny_model
from tests.services.drafter_kit import (
    COUPLED,
    GREEDY,
    PROMPT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    Harness,
    SoftEngine,
    followed,
    holds_as_if_fresh,
    plain_text,
    real_engine,
    said_in_rounds,
    tokens_of,
)
from tests.services.test_drafter_model import MOVES
from tests.tries import tries

L = len(SoftEngine.soft_ids)
PENALISED = ResolvedSampling(
    temperature=0.9,
    repetition_penalty=1.4,
    frequency_penalty=0.7,
    max_tokens=60,
    min_tokens=3,
    stop_token_ids=(4, 5, 6),
)


def harness_of(engine=None, step_tokens=64, q_top=64):
    engine = engine or SoftEngine()
    drafter = LookaheadDrafter(engine, step_tokens=step_tokens, q_top=q_top)
    return Harness(engine, drafter=drafter)


def best_ahead(text, count=1 + L):
    """What the fake engine drafts after a text in one forward."""
    return [int(row.argmax()) for row in SoftEngine().ahead(text, L)[:count]]


# --- on a fake engine: what is fed, and what is drafted -----------------------------


def test_one_forward_drafts_the_next_token_and_one_for_each_embedding():
    harness = harness_of()
    draft = harness.draft(window=1 + L)
    assert list(draft.tree.token_ids) == best_ahead([1, 2, 3])
    assert (draft.tree.proposal, draft.tree.q) == (Proposal.ONE_HOT, None)
    assert harness.engine.forwards == [[3 + L]]


def test_it_goes_on_from_its_own_draft_as_text():
    harness = harness_of()
    first, second = harness.drafts(window=2 * (1 + L))
    assert (first.final, second.final) == (False, True)
    assert list(second.tree.token_ids) == best_ahead([1, 2, 3, *first.tree.token_ids])
    assert harness.engine.forwards == [[3 + L], [1 + L + L]]


@pytest.mark.parametrize(("window", "fed"), [(1, [3]), (2, [4]), (3, [5])])
def test_no_more_rows_are_fed_than_there_is_room_for(window, fed):
    harness = harness_of()
    assert len(tokens_of(harness.drafts(window=window))) == window
    assert harness.engine.forwards == [fed]


def test_the_last_tokens_of_a_text_and_of_the_context_are_drafted_and_none_beyond():
    harness = harness_of(SoftEngine(context=6))
    harness.open(max_tokens=2)
    harness.open("long", window=9)
    drafts = harness.run()
    assert len(tokens_of(drafts)) == 2
    assert len(tokens_of(drafts, "long")) == 4
    assert [draft.final for draft in drafts if draft.session == "long"][-1]


@tries(150)
@given(st.data())
def test_every_draft_follows_from_the_text_and_kv_is_a_prefix_of_it(data):
    harness = harness_of(step_tokens=data.draw(st.integers(1, 8)))
    harness.open(window=data.draw(st.integers(1, 9)))
    for before, draft in followed(harness, data.draw(MOVES)):
        assert list(draft.tree.token_ids) == best_ahead(before, len(draft.tree))


def test_sessions_are_batched_and_a_long_prompt_enters_in_chunks_without_embeddings():
    harness = harness_of(step_tokens=8)
    harness.open(window=1 + L)
    harness.core.step()
    harness.engine.forwards.clear()
    harness.open("long", [1] * 20, window=1 + L)
    harness.allow("s", 3 * (1 + L))
    drafts = harness.run()
    assert harness.engine.forwards == [[1 + L + L, 2], [1 + L + L, 2], [8], [8 + L]]
    assert tokens_of(drafts, "long") == best_ahead([1] * 20)


def test_a_drafted_stop_token_ends_the_draft():
    first, stop, *_ = best_ahead([1, 2])
    assert first != stop
    draft = harness_of().draft([1, 2], stop_token_ids=(stop,))
    assert list(draft.tree.token_ids) == [first, stop]
    assert draft.final


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_a_row_without_a_finite_law_ends_the_draft_before_it(mode):
    class Broken(SoftEngine):
        @staticmethod
        def logits(text):
            broken = VOCAB + 1 in text
            return torch.full((VOCAB,), torch.nan) if broken else FakeEngine.logits(text)

    draft = harness_of(Broken()).draft([1, 2], mode=mode, window=9)
    assert (len(draft.tree), draft.final) == (2, True)


def test_ids_of_embeddings_in_a_text_are_refused_as_unknown_tokens():
    harness = harness_of()
    harness.open("refused", [1, VOCAB])
    assert [gone.reason for gone in harness.gone.values()] == [FailureReason.INVALID]
    harness.drafts([1, 2])
    (draft,) = harness.answered(0, [VOCAB])
    assert (draft.tree.token_ids, draft.final) == ((), True)


def test_it_drafts_chains_of_one_candidate_whatever_is_asked_for():
    harness = harness_of()
    draft = harness.draft(num_candidates=3, window=1 + L)
    assert (len(draft.tree), draft.tree.parents) == (1 + L, None)
    assert harness.core.describe().capabilities == ("model:sampled", *LATER_FORMATS)


def test_an_engine_without_embeddings_is_no_look_ahead_drafter():
    engine = NativeEngine.from_model(tiny_model("llama"), check=False)
    with pytest.raises(ValueError, match="no look-ahead embeddings"):
        LookaheadDrafter(engine)


# --- the law that is sent ------------------------------------------------------------


def test_coupled_drafts_use_the_shared_noise_of_each_rows_position():
    harness = harness_of()
    coupled = {"mode": VerifyMode.COUPLED, "window": 2 * (1 + L)}
    sampling = ResolvedSampling(temperature=0.8, max_tokens=60, top_k=5)
    text = [1, 2]
    for draft in harness.drafts(text, sampling=sampling, **coupled):
        assert draft.tree.proposal is Proposal.COUPLED
        first = len(text) - 2
        rows = [RowContext(VerifyMode.COUPLED, sampling, 7, first + i) for i in range(1 + L)]
        chosen = choose(torch.stack(harness.engine.ahead(text, L)), rows)
        assert chosen == list(draft.tree.token_ids)
        text += draft.tree.token_ids


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("sampling", [COUPLED, PENALISED], ids=["plain", "penalised"])
def test_every_token_is_drawn_from_the_law_sent_which_is_its_rows_own(mode, sampling):
    """Penalties count the text in front of the draft; nothing in the draft changes a row."""
    harness, prompt, seed = harness_of(q_top=7), [1, 2, 1, 8], (1 << 64) - 3
    own = {"mode": mode, "sampling": sampling, "window": 11, "seed": seed}
    text = list(prompt)
    for draft in harness.drafts(prompt, **own):
        tree, start = draft.tree, draft.position
        assert tree.proposal is Proposal.SAMPLED
        history = History(prompt)
        history.extend(text[len(prompt) :])
        rows = [
            RowContext(mode, sampling, 7, start + i, history) for i in range(len(tree.token_ids))
        ]
        logits = torch.stack(harness.engine.ahead(text, L)[: len(rows)])
        ids, laws = top_law(logits, rows, 7)
        for i, (token, q) in enumerate(zip(tree.token_ids, tree.q, strict=True)):
            kept = int((laws[i] > 0).sum())
            assert q.token_ids == tuple(ids[i, :kept].tolist())
            assert q.probabilities == tuple(laws[i, :kept].tolist())
            u, mass = uniform(seed, Stream.DRAFT, draft.key, start, i, 0), 0.0
            drawn = next(t for t, p in zip(*_columns(q), strict=True) if (mass := mass + p) > u)
            assert token == drawn
        text += tree.token_ids
    assert len(text) > len(prompt) + L


def _columns(q):
    total = sum(q.probabilities)
    return q.token_ids, [p / total for p in q.probabilities]


# --- on real tiny models -------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "mistral", "gpt2"])
def engine(request):
    made = real_engine(request.param)
    scale = float(tiny_model(request.param).get_input_embeddings().weight.detach().std())
    rows = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    made.give_soft_tokens(rows * scale)
    return made


@pytest.mark.parametrize(
    ("mode", "sampling"), [(VerifyMode.GREEDY, GREEDY), (VerifyMode.COUPLED, COUPLED)]
)
def test_the_first_token_of_a_draft_by_the_target_itself_is_always_right(engine, mode, sampling):
    truth = plain_text(engine, PROMPT, 30, mode, sampling)
    harness = harness_of(engine, step_tokens=16)
    harness.open("s", PROMPT, mode=mode, sampling=sampling, window=4)
    committed = 0
    while committed < 28:
        (draft,) = harness.run()
        assert draft.tree.token_ids[0] == truth[committed]
        drafted = list(draft.tree.token_ids)
        right = next((i for i in range(4) if drafted[i] != truth[committed + i]), 4)
        # The verifier's answer: what is right, and the token after it. Two tokens or more.
        harness.say("s", committed, truth[committed : committed + right + 1])
        committed += right + 1
    harness.core.drop_link(0)
    assert engine.kv_tokens_used == 0


@pytest.mark.parametrize(
    ("mode", "sampling"),
    [(VerifyMode.GREEDY, GREEDY), (VerifyMode.COUPLED, COUPLED), (VerifyMode.BLOCK, COUPLED)],
)
def test_the_target_given_to_itself_is_accepted_whole_where_embeddings_can_say_it_all(
    mode, sampling
):
    """A target whose law is a function of the position alone: its rows ahead are exact."""
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
    engine = NativeEngine.from_model(model, spec=ModelSpec("gpt2"))
    engine.give_soft_tokens(torch.zeros(5, 64))
    exact = VerifyMode.COUPLED if mode is VerifyMode.BLOCK else mode
    truth = plain_text(engine, PROMPT, 40, exact, sampling)
    harness = harness_of(engine, step_tokens=16)
    harness.open("s", PROMPT, mode=mode, sampling=sampling, window=18)
    drafts = harness.run()
    assert [len(draft.tree) for draft in drafts] == [6, 6, 6]
    if mode.exact_match:
        assert tokens_of(drafts) == truth[:18]
    else:
        _assert_laws_are_the_targets(engine, drafts, sampling)
    harness.core.drop_link(0)


def _assert_laws_are_the_targets(engine, drafts, sampling):
    """q at every place is the target's own law after the tokens drafted before it."""
    tokens = tokens_of(drafts)
    cache = engine.new_cache(len(PROMPT) + len(tokens))
    (rows,) = engine.forward([Segment(cache, [*PROMPT, *tokens], logits_from=len(PROMPT) - 1)])
    sent = [row for draft in drafts for row in draft.tree.q]
    for i, q in enumerate(sent):
        ids, law = top_law(rows[i : i + 1], [RowContext(VerifyMode.BLOCK, sampling, 7, i)], 64)
        kept = int((law > 0).sum())
        assert q.token_ids == tuple(ids[0, :kept].tolist())
        assert q.probabilities == pytest.approx(law[0, :kept].tolist(), abs=1e-5)
    cache.free()


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_kv_after_commits_and_rollbacks_equals_a_fresh_prefill(engine, mode):
    harness = harness_of(engine, step_tokens=16)
    harness.open("s", PROMPT, mode=mode, sampling=COUPLED, window=7)
    committed = said_in_rounds(harness, (0, 3, 7, 1, 5, 2), 7)
    holds_as_if_fresh(engine, harness.state.cache, PROMPT + committed)
    harness.core.drop_link(0)
