"""A drafter whose head knows a part of the vocabulary drafts as one whose other logits are -inf."""

from dataclasses import replace

import pytest
import torch

from services.contract.types import EMPTY_HASH, ResolvedSampling, VerifyMode, extend_hash
from services.engine.sampling import (
    NO_CHOICE,
    History,
    PartHead,
    RowContext,
    best,
    choose,
    coupled_best,
    log_law,
    top_law,
)
from tests.services.drafter_kit import EXACT, SAMPLED, FakeEngine, Harness, tokens_of
from tests.services.test_drafter_sampling import EVERY_PARAMETER as ALL_PARAMETERS

PROMPT = [*range(20, 45), 20, 21, 22]
MODES = (*EXACT, *SAMPLED)
EVERY_PARAMETER = replace(
    ALL_PARAMETERS,
    stop_token_ids=(1, 6, 7, 60, 50_000),
    # Inside and outside the head; a few tokens lead everywhere, so that the penalties bite.
    logit_bias=(*((t, 9.0) for t in range(30, 36)), (36, -100.0), (41, 50.0), (50_001, 9.0)),
)
PARAMETERS = {
    "plain": ResolvedSampling(max_tokens=60),
    "cold": ResolvedSampling(max_tokens=60, temperature=0.4, top_p=0.8),
    "few": ResolvedSampling(max_tokens=60, top_k=3),
    "every parameter": EVERY_PARAMETER,
}
WIDTHS = {"narrow": 90, "wide": 3000}
"""Below and above what a CPU works out row by row."""


def head_of(width):
    """Two tokens of three, some stop tokens and biased ones among those left out."""
    return torch.tensor([token for token in range(width) if token % 3 != 2])


class Masked(FakeEngine):
    """The whole vocabulary, -inf outside the head; random text in, random logits out."""

    def __init__(self, width):
        super().__init__()
        self.vocab_size = width
        self.head = head_of(width)

    def logits(self, text):
        whole = torch.full((self.vocab_size,), -torch.inf)
        whole[self.head] = _random(text, self.vocab_size)[self.head]
        return whole


class Reduced(FakeEngine):
    """The head's columns alone."""

    def __init__(self, width):
        super().__init__()
        self.vocab_size = width
        self.head_ids = head_of(width)

    def logits(self, text):
        return _random(text, self.vocab_size)[self.head_ids]


def _random(text, width):
    seed = extend_hash(EMPTY_HASH, text) % (1 << 62)
    return torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 3


def drafts_of(engine, mode, sampling, count, limit=0):
    harness = Harness(engine, q_top=16)
    options = {"mode": mode, "sampling": sampling, "num_candidates": count, "vocab_size": limit}
    drafts = harness.drafts(PROMPT, window=12, seed=11, **options)
    harness.say("s", 0, [41, *tokens_of(drafts)[:2]])
    return [draft._replace(draft_ms=0.0) for draft in (*drafts, *harness.run())]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_part_of_a_head_drafts_as_a_whole_one_with_no_mass_elsewhere(width, name, mode, count):
    ours = drafts_of(Reduced(WIDTHS[width]), mode, PARAMETERS[name], count)
    theirs = drafts_of(Masked(WIDTHS[width]), mode, PARAMETERS[name], count)
    assert len(tokens_of(ours)) > 8
    assert set(tokens_of(ours)) <= set(head_of(WIDTHS[width]).tolist())
    assert [draft.tree.token_ids for draft in ours] == [draft.tree.token_ids for draft in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert replace(mine.tree, q=None) == replace(other.tree, q=None)
        for row, wanted in zip(mine.tree.q or (), other.tree.q or (), strict=True):
            assert row.token_ids == wanted.token_ids
            assert row.probabilities == pytest.approx(wanted.probabilities, abs=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_a_session_of_a_smaller_vocabulary_gets_only_its_tokens(mode):
    sampling = ResolvedSampling(max_tokens=60, temperature=3.0)
    ours = drafts_of(Reduced(90), mode, sampling, 2, limit=47)
    assert tokens_of(ours)
    assert max(tokens_of(ours)) < 47
    assert tokens_of(ours) == tokens_of(drafts_of(Masked(90), mode, sampling, 2, limit=47))


@pytest.mark.parametrize("mode", MODES)
def test_a_vocabulary_that_holds_nothing_of_the_head_gets_no_draft(mode):
    engine = Reduced(90)
    engine.head_ids = torch.tensor([60, 70])
    engine.logits = lambda text: torch.zeros(2)
    draft = Harness(engine).draft(PROMPT, mode=mode, vocab_size=47)
    assert draft.final
    assert not draft.tree.token_ids


def test_text_outside_the_head_is_taken_in_and_counted():
    outside = [token for token in PROMPT if token % 3 == 2]
    assert outside
    harness = Harness(Reduced(90))
    drafted = tokens_of(harness.drafts(PROMPT, frequency_penalty=1.0))
    harness.say("s", 0, [drafted[0], 41, 44])
    assert harness.run()
    assert harness.engine.caches[0].tokens[: len(PROMPT) + 3] == [*PROMPT, drafted[0], 41, 44]


# --- The choices alone ------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS.values())
@pytest.mark.parametrize("sampling", PARAMETERS.values(), ids=PARAMETERS)
def test_every_choice_over_a_part_is_that_over_the_whole(width, sampling):
    ids = head_of(width)
    whole = torch.full((6, width), -torch.inf)
    part = torch.stack([_random([row], width)[ids] for row in range(6)])
    whole[:, ids] = part
    head, history = PartHead(ids), History(PROMPT)
    rows = [
        RowContext(mode, sampling, 5, position, history, (30, 41))
        for position in (1, 9, 10)
        for mode in (VerifyMode.GREEDY, VerifyMode.COUPLED)
    ]
    assert choose(part, rows, head) == choose(whole, rows)
    assert NO_CHOICE not in choose(part, rows, head)
    assert torch.equal(best(part, rows, 4, head), best(whole, rows, 4))
    assert torch.equal(coupled_best(part, rows, 4, head), coupled_best(whole, rows, 4))
    torch.testing.assert_close(log_law(part, rows, head), log_law(whole, rows)[:, ids])
    ours, theirs = top_law(part, rows, 8, head), top_law(whole, rows, 8)
    torch.testing.assert_close(ours[1], theirs[1])
    assert torch.equal(ours[0][ours[1] > 0], theirs[0][theirs[1] > 0])


@pytest.mark.parametrize("width", WIDTHS.values())
def test_a_row_without_a_finite_law_has_no_choice(width):
    ids = head_of(width)
    rows = [RowContext(VerifyMode.COUPLED, ResolvedSampling(), 5, 0)] * 2
    part = torch.full((2, len(ids)), -torch.inf)
    part[1, 3] = torch.nan
    assert choose(part, rows, PartHead(ids)) == [NO_CHOICE] * 2
    assert coupled_best(part, rows, 2, PartHead(ids)).tolist() == [[NO_CHOICE] * 2] * 2
