"""The skipping drafter: who reads what, when a draft ends, and how the threshold follows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract.errors import StartError
from services.contract.types import EMPTY_HASH, VerifyMode, extend_hash
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.sampling import RowContext, choose
from services.engine.skip_mask import SkipMask, whole
from services.engine.spec import ModelSpec
from tests.models import tiny_model
from tests.services.drafter_kit import (
    COUPLED,
    EXACT,
    GREEDY,
    PROMPT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    Harness,
    plain_text,
    real_engine,
    said_in_rounds,
    tokens_of,
    trunk_of,
)
from tests.services.test_drafter_model import MOVES
from tests.tries import tries

NEVER = Exit(0.0, adaptive=False)
FIXED = Exit(0.4, adaptive=False)
MASK = SkipMask.of(2, attention=[1], mlp=[0])
SKIPPED = 100
"""Added to a token in a fake KV that the skipping model read."""


class FakeSkipEngine(FakeEngine):
    """What each token was read by is part of what the logits depend on."""

    num_layers = 2
    soft_ids = range(VOCAB, VOCAB + SKIPPED)

    def require_skipping(self):
        """It can skip."""

    @staticmethod
    def logits(text):
        """Of every kind, from sure to unsure."""
        generator = torch.Generator().manual_seed(extend_hash(EMPTY_HASH, text) % 2**31)
        return 2 * torch.randn(VOCAB, generator=generator)

    def forward(self, segments, skip=None):
        shift = 0 if skip is None or skip.empty else SKIPPED
        return super().forward(
            [replace(own, token_ids=[token + shift for token in own.token_ids]) for own in segments]
        )


def read(text, prompt):
    """KV of a text: the prompt by the whole model, the output by the skipping one."""
    return [*text[:prompt], *(token + SKIPPED for token in text[prompt:])]


def next_of(text, prompt):
    """The token drafted after `text`, and how sure of it the model is."""
    law = torch.softmax(FakeSkipEngine.logits(read(text, prompt)), -1)
    return int(law.argmax()), float(law.max())


def continuation(text, prompt, count):
    text = list(text)
    for _ in range(count):
        text.append(next_of(text, prompt)[0])
    return text[-count:]


def harness_of(rule=NEVER, step_tokens=64, engine=None):
    engine = engine or FakeSkipEngine()
    drafter = SkipDrafter(engine, MASK, rule, step_tokens=step_tokens)
    return Harness(engine, drafter=drafter)


def law_of(mode):
    return GREEDY if mode is VerifyMode.GREEDY else COUPLED


# --- who reads what -----------------------------------------------------------------


def test_the_whole_model_reads_the_prompt_and_the_skipping_one_the_output():
    harness = harness_of()
    tail = tokens_of(harness.drafts())
    assert tail == continuation([1, 2, 3], 3, 6)
    assert harness.engine.caches[0].tokens == read([1, 2, 3, *tail[:-1]], 3)
    assert harness.engine.forwards == [[3], [1], [1], [1], [1], [1]]


def test_committed_tokens_of_a_session_opened_again_are_read_by_the_skipping_model():
    harness = harness_of()
    assert tokens_of(harness.drafts(output=(4, 5))) == continuation([1, 2, 3, 4, 5], 3, 6)
    assert harness.engine.forwards[:2] == [[3], [2]]


def test_prompts_and_outputs_of_several_sessions_share_a_turn_but_no_forward():
    harness = harness_of(step_tokens=8)
    harness.open("a", [1, 2, 3])
    harness.core.step()
    harness.engine.forwards.clear()
    harness.open("b", [4, 5, 6])
    drafts = harness.run()
    assert harness.engine.forwards[:3] == [[3], [1], [1, 1]]
    assert tokens_of(drafts, "b") == continuation([4, 5, 6], 3, 6)


@tries(150)
@given(st.data())
def test_every_draft_follows_from_the_text_and_kv_is_a_function_of_it(data):
    rule = Exit(data.draw(st.sampled_from([0.0, 0.3, 0.5])), data.draw(st.booleans()))
    harness = harness_of(rule, data.draw(st.integers(1, 8)))
    harness.open(window=data.draw(st.integers(1, 5)))
    session = harness.session
    (cache,) = harness.engine.caches
    for steps, agreed, other in data.draw(MOVES):
        for _ in range(steps):
            before = list(session.text)
            threshold = harness.state.exit.threshold
            harness.core.step()
            for draft in harness.drafted():
                if draft.tree.token_ids:
                    token, sure = next_of(before, 3)
                    assert draft.tree.token_ids == (token,)
                    assert draft.final or sure >= min(threshold, harness.state.exit.threshold)
            assert cache.tokens == read(session.text, 3)[: cache.length]
        tail = session.text[3 + session.committed_length :]
        harness.say("s", session.committed_length, [*tail[:agreed], *other])
        assert cache.tokens == read(session.text, 3)[: cache.length]


# --- when a draft ends ----------------------------------------------------------------


def exit_of(text, prompt, threshold):
    """The draft after `text` that ends by itself."""
    tail = []
    while True:
        token, sure = next_of([*text, *tail], prompt)
        tail.append(token)
        if sure < threshold:
            return tail


def drafted(rule=FIXED, **changes):
    """A session on the text 4, 2, 3, and its first draft."""
    harness = harness_of(rule)
    return harness, trunk_of(harness.drafts([4, 2, 3], **({"window": 30} | changes)))


def test_a_draft_ends_with_the_first_token_that_is_not_sure():
    drafts = harness_of(FIXED).drafts([4, 2, 3], window=30)
    assert tokens_of(drafts) == exit_of([4, 2, 3], 3, 0.4)
    assert 1 < len(drafts) < 30
    assert [draft.final for draft in drafts] == [False] * (len(drafts) - 1) + [True]


def test_a_draft_that_ended_is_not_gone_on_with_before_its_end_is_committed():
    harness, tail = drafted()
    harness.say("s", 0, tail[:1])
    (nothing,) = harness.run()
    assert (nothing.tree.token_ids, nothing.final) == ((), True)
    harness.say("s", 1, tail[1:])
    assert tokens_of(harness.run()) == exit_of([4, 2, 3, *tail], 3, 0.4)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_rejection_before_the_end_starts_a_new_draft(kept):
    harness, tail = drafted()
    assert len(tail) > 2
    text = [*tail[:kept], (tail[kept] + 1) % VOCAB]
    harness.say("s", 0, text)
    assert tokens_of(harness.run()) == exit_of([4, 2, 3, *text], 3, 0.4)


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_drawn_draft_goes_on_behind_tokens_that_are_not_sure(mode):
    """Its length must not depend on what was drawn."""
    free, ended = (
        harness_of(rule).drafts([4, 2, 3], mode=mode, temperature=0.7, window=30)
        for rule in (NEVER, FIXED)
    )
    assert [draft.tree for draft in ended] == [draft.tree for draft in free]
    unsure, text = 0, [4, 2, 3]
    for token in tokens_of(ended):
        sure = float(torch.softmax(FakeSkipEngine.logits(read(text, 3)), -1)[token])
        unsure += sure < 0.4
        text.append(token)
    assert len(text) == 33
    assert unsure > 1


def test_a_tree_ends_below_a_trunk_token_that_is_not_sure():
    draft = harness_of(FIXED).draft([4, 2, 3], window=30, num_candidates=2)
    assert trunk_of([draft]) == exit_of([4, 2, 3], 3, 0.4)
    assert len(draft.tree) == 2 * len(trunk_of([draft]))
    assert draft.final


# --- how the threshold follows --------------------------------------------------------


def threshold_after(rounds):
    rule = Exit(0.4)
    for accepted, drafted, full in rounds:
        rule = rule.verified(accepted, drafted, full)
    return rule


def test_the_threshold_counts_what_was_verified():
    harness = harness_of(Exit(0.4))
    harness.open("s", [4, 2, 3], window=4)
    counted, committed = [], 0
    for right in (4, 2, 0, 9, 9, 9):
        tail = tokens_of(harness.run())
        kept = min(right, len(tail))
        wrong = (tail[kept] + 1) % VOCAB if kept < len(tail) else 5
        harness.say("s", committed, [*tail[:kept], wrong])
        committed += kept + 1
        counted.append((kept, len(tail), len(tail) == 4))
    harness.run()
    assert harness.state.exit == threshold_after(counted)


def test_a_commit_that_agrees_counts_only_what_it_holds():
    harness, tail = drafted(Exit(0.01), window=6)
    harness.say("s", 0, tail[:2])
    harness.run()
    assert harness.state.exit == Exit(0.01).verified(2, 2, full=True)


def test_tokens_that_nobody_drafted_count_nothing():
    harness, _ = drafted(Exit(0.4), window=0)
    harness.say("s", 0, [4, 5, 6])
    harness.allow("s", 3)
    harness.run()
    assert harness.state.exit == Exit(0.4)


def test_a_tree_counts_its_trunk():
    harness, trunk = drafted(Exit(0.4), num_candidates=2)
    assert len(trunk) > 1
    harness.say("s", 0, [trunk[0], (trunk[1] + 1) % VOCAB])
    harness.run()
    assert harness.state.exit == Exit(0.4).verified(1, len(trunk), full=False)


def test_sessions_have_thresholds_of_their_own():
    harness = harness_of(Exit(0.01))
    for session in ("s", "other"):
        harness.open(session, [4, 2, 3], window=3)
    tail = tokens_of(harness.run())
    harness.say("s", 0, [(tail[0] + 1) % VOCAB])
    harness.run()
    assert harness.state.exit.threshold > 0.01
    assert harness.state_of("other").exit == Exit(0.01)


# --- on real tiny models ----------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "mistral", "gpt_neox"])
def engine(request):
    return real_engine(request.param)


def skipped_rows(engine, text, prompt):
    """The last row of a text read afresh: prompt whole, output skipping."""
    cache = engine.new_cache(len(text) + 1)
    (rows,) = engine.forward([Segment(cache, text[:prompt])])
    if len(text) > prompt:
        (rows,) = engine.forward([Segment(cache, text[prompt:])], MASK)
    cache.free()
    return rows[-1:]


def expected_draft(engine, text, count, mode):
    drafted = []
    for _ in range(count):
        rows = skipped_rows(engine, [*text, *drafted], len(PROMPT))
        position = len(text) + len(drafted) - len(PROMPT)
        row = RowContext(mode, law_of(mode), 7, position)
        drafted += choose(rows, [row])
    return drafted


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("mode", list(VerifyMode))
def test_kv_after_commits_and_rollbacks_equals_a_fresh_prefill(engine, mode, candidates):
    harness = harness_of(engine=engine, step_tokens=16)
    sampling = law_of(mode)
    harness.open("s", PROMPT, mode=mode, sampling=sampling, num_candidates=candidates)

    def right(committed):
        return expected_draft(engine, PROMPT + committed, 6, mode)

    committed = said_in_rounds(harness, (0, 3, 6, 1, 5), 6, right if mode.exact_match else None)
    cache = harness.state.cache
    text = PROMPT + committed
    assert cache.length == len(text)
    assert cache.lacking == MASK.attention
    cache.rollback(len(text) - 1)
    (kept,) = engine.forward([Segment(cache, text[-1:])], MASK)
    fresh = skipped_rows(engine, text, len(PROMPT))
    torch.testing.assert_close(kept, fresh, atol=1e-4, rtol=1e-4)
    harness.core.drop_link(0)
    assert engine.kv_tokens_used == 0


@pytest.mark.parametrize("mode", EXACT)
def test_with_an_empty_mask_every_draft_is_the_targets_own_text(engine, mode):
    sampling = law_of(mode)
    truth = plain_text(engine, PROMPT, 30, mode, sampling)
    harness = Harness(engine, drafter=SkipDrafter(engine, whole(2), Exit(0.05)))
    harness.open("s", PROMPT, mode=mode, sampling=sampling)
    committed = 0
    while committed < 24:
        drafts = harness.run()
        assert drafts
        for draft in drafts:
            end = draft.position + len(draft.tree)
            assert list(draft.tree.token_ids) == truth[draft.position : end]
        drafted = len(harness.session.text) - len(PROMPT)
        harness.say("s", committed, truth[committed : drafted + 1])
        committed = drafted + 1
    harness.core.drop_link(0)


# --- refusals -----------------------------------------------------------------------


def test_a_mask_of_another_size_is_refused_at_the_start(engine):
    with pytest.raises(StartError, match=r"skip: the mask is for 4 layers, .* has 2"):
        SkipDrafter(engine, whole(4), NEVER)


def test_an_architecture_that_cannot_skip_is_refused_at_the_start():
    model = tiny_model("opt", do_layer_norm_before=False)
    odd = NativeEngine.from_model(model, spec=ModelSpec("odd", kv_capacity_tokens=64))
    with pytest.raises(StartError, match="odd: its sub-layers cannot be skipped"):
        SkipDrafter(odd, MASK, NEVER)
