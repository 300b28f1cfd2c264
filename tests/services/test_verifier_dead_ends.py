"""Rows without a token to choose, on a verifier core: what was accepted before is emitted."""

import pytest
import torch

from services.contract import types as t
from services.engine.checkpoint.bundle import make_bundle
from services.engine.structure import Structures
from tests.fake_engine import FakeEngine
from tests.models import VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.services.verifier_bench import PROMPT, Table, block

A, B = 7, 8
MODES = tuple(t.VerifyMode)
NEVER = 10_000


class Saying(FakeEngine):
    """Says one token for sure; behind `dead` of them it has no law at all."""

    def __init__(self, dead=NEVER, vocab=12, says=A):
        super().__init__()
        self.vocab_size, self._dead, self._says = vocab, dead, says

    def logits(self, text):
        row = torch.full((self.vocab_size,), -50.0)
        row[self._says] = 50.0
        said = len(text) - len(PROMPT)
        return row * float("nan") if said >= self._dead else row


def chain(mode, count):
    tokens = (A,) * count
    if mode.exact_match:
        return t.DraftTree(tokens)
    return t.DraftTree(tokens, None, (t.SparseRow((A,), (1.0,)),) * count, t.Proposal.SAMPLED)


def tree(mode, _):
    """A, and below it A and B, and B beside the first."""
    tokens, parents = (A, B, A, B), (-1, -1, 0, 0)
    if mode.exact_match:
        return t.DraftTree(tokens, parents)
    both = t.SparseRow((A, B), (0.5, 0.5))
    return t.DraftTree(tokens, parents, (both, both), t.Proposal.SAMPLED)


CASES = {
    "no law": (2, {}, t.FailureReason.INTERNAL),
    "a bad word": (
        NEVER,
        {"allowed_token_ids": (A,), "bad_words": ((A, A, A),)},
        t.FailureReason.NOTHING_ALLOWED,
    ),
}


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize(("drafted", "count"), [(chain, 2), (chain, 4), (tree, 0)])
@pytest.mark.parametrize("why", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_accepted_before_a_dead_end_is_emitted_and_the_next_block_fails(
    mode, why, drafted, count, bonus
):
    dead, limits, reason = CASES[why]
    heat = 0.0 if mode is t.VerifyMode.GREEDY else 1.0
    table = Table(Saying(dead))
    table.opened(mode=mode, temperature=heat, logprobs=1, **limits)
    ask = t.Verify("s", 1, 1, 0, drafted(mode, count), want_bonus=bonus)
    verdict = table.verdict(ask)
    assert (verdict.token_ids, verdict.accepted, len(verdict.logprobs)) == ((A, A), 2, 2)
    assert verdict.all_accepted == (count != 4)
    assert table.failure(block(2, 2)).reason is reason
    assert table.engine.kv_tokens_used == 0


@pytest.mark.parametrize("mode", MODES)
def test_without_a_draft_a_dead_end_fails_at_once(mode):
    table = Table(Saying(1))
    table.opened(mode=mode, temperature=0.0 if mode is t.VerifyMode.GREEDY else 1.0)
    assert table.verdict(block(1, 0)).token_ids == (A,)
    assert table.failure(t.Verify("s", 1, 2, 1, chain(mode, 3))).reason is t.FailureReason.INTERNAL


def test_a_form_that_cannot_be_followed_costs_no_token_that_was_accepted():
    """Its states multiply with every token, until the row behind some has none any more."""
    structures = Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE)
    [letter] = tiny_tokenizer().encode("a")
    form = t.ResponseFormat(t.FormatKind.REGEX, ("(.*[a-z].{1,200}){1,40}",))
    table = Table(Saying(vocab=VOCAB_SIZE, says=letter), structures=structures)
    table.opened(response_format=form, max_tokens=490, window=64)
    said = 0
    for round_ in range(1, 20):
        [event] = table.run(block(round_, said, (letter,) * 64))
        if isinstance(event, t.SessionFailed):
            break
        said += len(event.token_ids)
    assert event.reason is t.FailureReason.FORMAT
    assert "cannot be followed" in event.message
    assert said % 65 != 0, "the tokens before the dead end were dropped"
