"""The skipping drafter: who reads what, when a draft ends, and how the threshold follows."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.contract.errors import StartError
from services.contract.types import EMPTY_HASH, ResolvedSampling, VerifyMode, extend_hash
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.sampling import RowContext, choose
from services.engine.skip_mask import SkipMask, whole
from services.engine.spec import ModelSpec
from tests.models import tiny_model
from tests.services.drafter_kit import VOCAB, FakeEngine, Harness, tokens_of
from tests.services.test_drafter_model import COUPLED, GREEDY, MOVES, PROMPT, plain_text, trunk_of

NEVER = Exit(0.0, adaptive=False)
MASK = SkipMask.of(2, attention=[1], mlp=[0])
SKIPPED = 100
"""Added to a token in a fake KV that the skipping model read."""


class FakeSkipEngine(FakeEngine):
    """What each token was read by is part of what the logits depend on."""

    num_layers = 2
    soft_ids = range(VOCAB, VOCAB + SKIPPED)

    def require_skipping(self) -> None:
        """It can skip."""

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        """Of every kind, from sure to unsure."""
        generator = torch.Generator().manual_seed(extend_hash(EMPTY_HASH, text) % 2**31)
        return 2 * torch.randn(VOCAB, generator=generator)

    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        shift = 0 if skip is None or skip.empty else SKIPPED
        marked = [
            Segment(segment.cache, [token + shift for token in segment.token_ids], None, first)
            for segment in segments
            for first in (segment.logits_from,)
        ]
        return super().forward(marked)


def read(text: Sequence[int], prompt: int) -> list[int]:
    """KV of a text: the prompt by the whole model, the output by the skipping one."""
    return [*text[:prompt], *(token + SKIPPED for token in text[prompt:])]


def next_of(text: Sequence[int], prompt: int) -> tuple[int, float]:
    """The token drafted after `text`, and how sure of it the model is."""
    law = torch.softmax(FakeSkipEngine.logits(read(text, prompt)), -1)
    return int(law.argmax()), float(law.max())


def continuation(text: Sequence[int], prompt: int, count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(next_of(text, prompt)[0])
    return text[-count:]


def harness_of(rule: Exit = NEVER, step_tokens: int = 64, engine: Any = None) -> Harness:
    engine = engine or FakeSkipEngine()
    drafter = SkipDrafter(engine, MASK, rule, step_tokens=step_tokens)
    return Harness(engine, drafter=drafter)


def state_of(harness: Harness) -> Any:
    return harness.drafter._sessions[0, "s"]


# --- who reads what -----------------------------------------------------------------


def test_the_whole_model_reads_the_prompt_and_the_skipping_one_the_output():
    harness = harness_of()
    harness.open("s", [1, 2, 3])
    tail = tokens_of(harness.run())
    assert tail == continuation([1, 2, 3], 3, 6)
    assert harness.engine.caches[0].tokens == read([1, 2, 3, *tail[:-1]], 3)
    assert harness.engine.forwards == [[3], [1], [1], [1], [1], [1]]


def test_committed_tokens_of_a_session_opened_again_are_read_by_the_skipping_model():
    harness = harness_of()
    harness.open("s", [1, 2, 3], committed=(4, 5))
    assert tokens_of(harness.run()) == continuation([1, 2, 3, 4, 5], 3, 6)
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


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_draft_follows_from_the_text_and_kv_is_a_function_of_it(data):
    rule = Exit(data.draw(st.sampled_from([0.0, 0.3, 0.5])), data.draw(st.booleans()))
    harness = harness_of(rule, data.draw(st.integers(1, 8)))
    harness.open("s", [1, 2, 3], window=data.draw(st.integers(1, 5)))
    session = harness.core._entries[0, "s"].session
    (cache,) = harness.engine.caches
    epoch = 1
    for steps, agreed, other, bump in data.draw(MOVES):
        for _ in range(steps):
            before = list(session.text)
            threshold = state_of(harness).exit.threshold
            harness.core.step()
            for draft in harness.take():
                if draft.tree.token_ids:
                    token, sure = next_of(before, 3)
                    assert draft.tree.token_ids == (token,)
                    assert draft.final or sure >= min(threshold, state_of(harness).exit.threshold)
            assert cache.tokens == read(session.text, 3)[: cache.length]
        tail = session.text[3 + session.committed_length :]
        epoch += bump
        harness.commit("s", session.committed_length, [*tail[:agreed], *other], epoch)
        assert cache.tokens == read(session.text, 3)[: cache.length]


# --- when a draft ends ----------------------------------------------------------------


def exit_of(text: list[int], prompt: int, threshold: float) -> list[int]:
    """The draft after `text` that ends by itself."""
    tail: list[int] = []
    while True:
        token, sure = next_of([*text, *tail], prompt)
        tail.append(token)
        if sure < threshold:
            return tail


def test_a_draft_ends_with_the_first_token_that_is_not_sure():
    harness = harness_of(Exit(0.4, adaptive=False))
    harness.open("s", [4, 2, 3], window=30)
    drafts = harness.run()
    assert tokens_of(drafts) == exit_of([4, 2, 3], 3, 0.4)
    assert 1 < len(drafts) < 30
    assert [draft.final for draft in drafts] == [False] * (len(drafts) - 1) + [True]


def test_a_draft_that_ended_is_not_gone_on_with_before_its_end_is_committed():
    harness = harness_of(Exit(0.4, adaptive=False))
    harness.open("s", [4, 2, 3], window=30)
    tail = tokens_of(harness.run())
    harness.commit("s", 0, tail[:1])
    (nothing,) = harness.run()
    assert (nothing.tree.token_ids, nothing.final) == ((), True)
    harness.commit("s", 1, tail[1:])
    assert tokens_of(harness.run()) == exit_of([4, 2, 3, *tail], 3, 0.4)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_rejection_before_the_end_starts_a_new_draft(kept):
    harness = harness_of(Exit(0.4, adaptive=False))
    harness.open("s", [4, 2, 3], window=30)
    tail = tokens_of(harness.run())
    assert len(tail) > 2
    wrong = (tail[kept] + 1) % VOCAB
    harness.commit("s", 0, [*tail[:kept], wrong], epoch=2)
    text = [4, 2, 3, *tail[:kept], wrong]
    assert tokens_of(harness.run()) == exit_of(text, 3, 0.4)


@pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])
def test_a_drawn_draft_goes_on_behind_tokens_that_are_not_sure(mode):
    """Its length must not depend on what was drawn."""
    sampling = ResolvedSampling(max_tokens=60, temperature=0.7)
    drafts = []
    for rule in (NEVER, Exit(0.4, adaptive=False)):
        harness = harness_of(rule)
        harness.open("s", [4, 2, 3], mode=mode, sampling=sampling, window=30)
        drafts.append(harness.run())
    free, ended = drafts
    assert [draft.tree for draft in ended] == [draft.tree for draft in free]
    unsure, text = 0, [4, 2, 3]
    for token in tokens_of(ended):
        sure = float(torch.softmax(FakeSkipEngine.logits(read(text, 3)), -1)[token])
        unsure += sure < 0.4
        text.append(token)
    assert len(text) == 33
    assert unsure > 1


def test_a_tree_ends_below_a_trunk_token_that_is_not_sure():
    harness = harness_of(Exit(0.4, adaptive=False))
    harness.open("s", [4, 2, 3], window=30, num_candidates=2)
    (draft,) = harness.run()
    assert trunk_of([draft]) == exit_of([4, 2, 3], 3, 0.4)
    assert len(draft.tree) == 2 * len(trunk_of([draft]))
    assert draft.final


# --- how the threshold follows --------------------------------------------------------


def threshold_after(rounds: Sequence[tuple[int, int, bool]]) -> Exit:
    rule = Exit(0.4)
    for accepted, drafted, full in rounds:
        rule = rule.verified(accepted, drafted, full)
    return rule


def test_the_threshold_counts_what_was_verified():
    harness = harness_of(Exit(0.4))
    harness.open("s", [4, 2, 3], window=4)
    counted, committed = [], 0
    for epoch, right in enumerate((4, 2, 0, 9, 9, 9), start=2):
        tail = tokens_of(harness.run())
        kept = min(right, len(tail))
        wrong = (tail[kept] + 1) % VOCAB if kept < len(tail) else 5
        harness.commit("s", committed, [*tail[:kept], wrong], epoch)
        committed += kept + 1
        counted.append((kept, len(tail), len(tail) == 4))
    harness.run()
    assert state_of(harness).exit == threshold_after(counted)


def test_a_commit_that_agrees_counts_only_what_it_holds():
    harness = harness_of(Exit(0.01))
    harness.open("s", [4, 2, 3], window=6)
    tail = tokens_of(harness.run())
    harness.commit("s", 0, tail[:2])
    harness.run()
    assert state_of(harness).exit == Exit(0.01).verified(2, 2, full=True)


def test_tokens_that_nobody_drafted_count_nothing():
    harness = harness_of(Exit(0.4))
    harness.open("s", [4, 2, 3], window=0)
    harness.run()
    harness.commit("s", 0, [4, 5, 6])
    harness.credit("s", 3)
    harness.run()
    assert state_of(harness).exit == Exit(0.4)


def test_a_tree_counts_its_trunk():
    harness = harness_of(Exit(0.4))
    harness.open("s", [4, 2, 3], window=30, num_candidates=2)
    trunk = trunk_of(harness.run())
    assert len(trunk) > 1
    harness.commit("s", 0, [trunk[0], (trunk[1] + 1) % VOCAB], epoch=2)
    harness.run()
    assert state_of(harness).exit == Exit(0.4).verified(1, len(trunk), full=False)


def test_sessions_have_thresholds_of_their_own():
    harness = harness_of(Exit(0.01))
    for session in ("s", "other"):
        harness.open(session, [4, 2, 3], window=3)
    tail = tokens_of([d for d in harness.run() if d.session == "s"])
    harness.commit("s", 0, [(tail[0] + 1) % VOCAB], epoch=2)
    harness.run()
    assert state_of(harness).exit.threshold > 0.01
    assert harness.drafter._sessions[0, "other"].exit == Exit(0.01)


# --- on real tiny models ----------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "mistral", "gpt_neox"])
def engine(request):
    torch.set_num_threads(1)
    return NativeEngine.from_model(tiny_model(request.param), spec=ModelSpec(model=request.param))


def skipped_rows(engine: NativeEngine, text: Sequence[int], prompt: int) -> Tensor:
    """The last row of a text read afresh: prompt whole, output skipping."""
    cache = engine.new_cache(len(text) + 1)
    (rows,) = engine.forward([Segment(cache, text[:prompt])])
    if len(text) > prompt:
        (rows,) = engine.forward([Segment(cache, text[prompt:])], MASK)
    cache.free()
    return rows[-1:]


def expected_draft(
    engine: NativeEngine, text: Sequence[int], count: int, mode: VerifyMode
) -> list[int]:
    drafted: list[int] = []
    for _ in range(count):
        rows = skipped_rows(engine, [*text, *drafted], len(PROMPT))
        position = len(text) + len(drafted) - len(PROMPT)
        sampling = GREEDY if mode is VerifyMode.GREEDY else COUPLED
        drafted += choose(rows, [RowContext(mode, sampling, 7, position)])
    return drafted


@pytest.mark.parametrize("candidates", [1, 3])
@pytest.mark.parametrize("mode", list(VerifyMode))
def test_kv_after_commits_and_rollbacks_equals_a_fresh_prefill(engine, mode, candidates):
    harness = harness_of(engine=engine, step_tokens=16)
    sampling = GREEDY if mode is VerifyMode.GREEDY else COUPLED
    harness.open("s", PROMPT, mode=mode, sampling=sampling, num_candidates=candidates)
    committed: list[int] = []
    for epoch, agreed in enumerate((0, 3, 6, 1, 5), start=2):
        tail = trunk_of(harness.run())
        assert len(tail) == 6
        if mode.exact_match:
            assert tail == expected_draft(engine, PROMPT + committed, 6, mode)
        new = [*tail[:agreed], 60 + epoch]
        harness.commit("s", len(committed), new, epoch)
        committed += new
    harness.core.step()
    cache = state_of(harness).cache
    text = PROMPT + committed
    assert cache.length == len(text)
    assert cache.lacking == MASK.attention
    cache.rollback(len(text) - 1)
    (kept,) = engine.forward([Segment(cache, text[-1:])], MASK)
    fresh = skipped_rows(engine, text, len(PROMPT))
    torch.testing.assert_close(kept, fresh, atol=1e-4, rtol=1e-4)
    harness.core.drop_link(0)
    assert engine.kv_tokens_used == 0


@pytest.mark.parametrize(
    ("mode", "sampling"), [(VerifyMode.GREEDY, GREEDY), (VerifyMode.COUPLED, COUPLED)]
)
def test_with_an_empty_mask_every_draft_is_the_targets_own_text(engine, mode, sampling):
    truth = plain_text(engine, PROMPT, 30, mode, sampling)
    drafter = SkipDrafter(engine, whole(2), Exit(0.05))
    harness = Harness(engine, drafter=drafter)
    harness.open("s", PROMPT, mode=mode, sampling=sampling)
    committed = 0
    while committed < 24:
        drafts = harness.run()
        assert drafts
        for draft in drafts:
            end = draft.first_position + len(draft.tree)
            assert list(draft.tree.token_ids) == truth[draft.first_position : end]
        drafted = len(harness.core._entries[0, "s"].session.text) - len(PROMPT)
        harness.commit("s", committed, truth[committed : drafted + 1])
        committed = drafted + 1
    harness.core.drop_link(0)


# --- refusals -----------------------------------------------------------------------


def test_a_mask_of_another_size_is_refused_at_the_start(engine):
    with pytest.raises(StartError, match=r"skip: the mask is for 4 layers, .* has 2"):
        SkipDrafter(engine, whole(4), NEVER)


def test_a_distilled_drafter_is_no_target():
    fake = FakeSkipEngine()
    fake.head_ids = torch.arange(3)
    with pytest.raises(StartError, match="fake is a distilled drafter, not a target"):
        SkipDrafter(fake, MASK, NEVER)


def test_an_architecture_that_cannot_skip_is_refused_at_the_start():
    model = tiny_model("opt", do_layer_norm_before=False)
    odd = NativeEngine.from_model(model, spec=ModelSpec("odd", kv_capacity_tokens=64))
    with pytest.raises(StartError, match="odd: its sub-layers cannot be skipped"):
        SkipDrafter(odd, MASK, NEVER)
