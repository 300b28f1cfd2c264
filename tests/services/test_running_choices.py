"""Near-ties, and rows without a token to choose, in a verifier that runs its sessions."""

import pytest
import torch

from services.contract import types as t
from services.contract.frames import StepEnd
from services.contract.worker_messages import SessionGone
from services.engine.checkpoint.bundle import make_bundle
from services.engine.sampling import ties
from services.engine.structure import Structures
from tests.fake_engine import VOCAB, FakeEngine, law
from tests.models import VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.services.running_bench import (
    COUPLED,
    GREEDY,
    PROMPT,
    TEXT,
    Running,
    draft,
    limit,
    of_kind,
    only,
    other,
    start,
)

# --- near-ties ----------------------------------------------------------------------------

TIED = {0, 3, 4, 7}
"""Output positions at which two tokens tie."""


class Tied(FakeEngine):
    """What others say; at some positions a token that nobody else chooses ties with the best."""

    def logits(self, text):
        row = law(text, self.vocab_size)
        if len(text) - len(PROMPT) in TIED:
            best = int(row.argmax())
            row[best + 1 if best + 1 < VOCAB else 0] = row[best]
        return row


def counting(engine=None, **more):
    """A verifier on which a session is open, and what it counts."""
    counted = []
    table = Running(engine or Tied(), on_choices=lambda *of: counted.append(of))
    table.run(start(limit=0, **more))
    return table, counted


def said_by(engine, count):
    text = list(PROMPT)
    for _ in range(count):
        text.append(int(engine.logits(text).argmax()))
    return tuple(text[len(PROMPT) :])


SAID = said_by(Tied(), 20)


def test_each_token_that_a_step_brings_counts_once():
    table, counted = counting()
    [row] = table.step(draft((*SAID[:4], other(SAID[4]), 0)), limit(1))
    assert (row.tokens, row.near_ties) == (SAID[:5], 3)
    assert counted == [("greedy", 5, 3)]


def test_rows_that_no_walk_reaches_do_not_count():
    table, _ = counting()
    [row] = table.step(draft((SAID[0], other(SAID[1]), *SAID[2:5])), limit(1))
    assert (row.tokens, row.near_ties) == (SAID[:2], 1)


def test_drafts_of_every_size_and_trees_count_the_same():
    for size in (0, 1, 2, 4):
        table, counted = counting()
        for number in range(10):
            said = table.output()
            if len(said) >= 10:
                break
            own = draft(SAID[len(said) :][:size], said, number) if size else limit(0)
            table.step(own, limit(len(said) + 1))
        assert table.output() == SAID[: len(table.output())]
        tokens = sum(tokens for _, tokens, _ in counted)
        assert sum(near for *_, near in counted) == sum(place < tokens for place in TIED)
    table, counted = counting()
    tokens = (other(SAID[0]), SAID[0], other(SAID[1]), SAID[1])
    [row] = table.step(draft((), tree=t.DraftTree(tokens, (-1, -1, 1, 1))), limit(1))
    assert (row.tokens, row.near_ties) == (SAID[:3], 1)


@pytest.mark.parametrize("law_", [{}, {"frequency_penalty": 1e-4}], ids=["plain", "walked"])
def test_the_threshold_is_that_of_the_number_format(law_, monkeypatch):
    for dtype, near in (("float32", 0), ("bfloat16", 1)):
        monkeypatch.setattr(ties, "ROUNDING", {"float32": 1e-3, "bfloat16": 1e3})
        engine = FakeEngine()
        engine.dtype = dtype
        table, _ = counting(engine, **law_)
        [row] = table.step(limit(1))
        assert row.near_ties == near


@pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])
def test_where_chance_decides_nothing_is_counted(mode):
    table, counted = counting(mode=mode)
    [row] = table.step(limit(1))
    assert (row.near_ties, counted) == (0, [])


def test_coupled_choices_are_counted_by_logits_and_noise(monkeypatch):
    for widest, near in ((1e3, 1), (1e-3, 0)):
        monkeypatch.setattr(ties, "ROUNDING", {"float32": widest})
        # A tie of logits is none once the noise is added.
        table, counted = counting(mode=COUPLED)
        [row] = table.step(limit(1))
        assert row.near_ties == near
        assert counted == [("coupled", 1, near)]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_texts_do_not_depend_on_what_counts_as_near(mode, monkeypatch):
    texts = set()
    for widest in (0.0, 1e-3, 1e3):
        monkeypatch.setattr(ties, "ROUNDING", {"float32": widest})
        table = Running()
        table.step(start(mode=mode))
        for number in range(30):
            said = table.output()
            table.step(draft(TEXT[len(said) :][:3] or (0,), said, number))
        texts.add(table.output())
    assert len(texts) == 1
    assert mode is COUPLED or texts == {TEXT}


# --- nothing to choose --------------------------------------------------------------------

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


@pytest.mark.parametrize(("drafted", "count"), [(chain, 2), (chain, 4), (tree, 0)])
@pytest.mark.parametrize("why", CASES)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_accepted_before_a_dead_end_is_told_and_the_next_step_fails(
    mode, why, drafted, count
):
    dead, limits, reason = CASES[why]
    heat = 0.0 if mode is GREEDY else 1.0
    table = Running(Saying(dead))
    table.run(start(mode=mode, temperature=heat, logprobs=1, limit=0, **limits))
    [row] = table.step(draft((), tree=drafted(mode, count)), limit(40))
    assert (row.tokens, row.accepted, len(row.logprobs)) == ((A, A), 2, 2)
    assert row.end is StepEnd.NONE
    assert only(SessionGone, table.run()).reason is reason
    assert table.engine.kv_tokens_used == 0


@pytest.mark.parametrize("mode", MODES)
def test_without_a_draft_a_dead_end_fails_at_once(mode):
    table = Running(Saying(1))
    table.run(start(mode=mode, temperature=0.0 if mode is GREEDY else 1.0, limit=1))
    assert table.output() == (A,)
    events = table.run(limit(9), draft((), (A,), tree=chain(mode, 3)))
    assert only(SessionGone, events).reason is t.FailureReason.INTERNAL
    assert table.output() == (A,)


def test_a_row_of_nan_beyond_the_accepted_path_is_nothing():
    wrong = other(TEXT[0])
    table = Running(FakeEngine(poison=[*PROMPT, wrong]))
    table.run(start(limit=0))
    [row] = table.step(draft([wrong]), limit(1))
    assert row.tokens == TEXT[:1]


@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_nan_fails_its_session_and_not_the_step(mode):
    table = Running(FakeEngine(poison=[*PROMPT]), prefix_cache_tokens=0)
    events = table.run(start(1, mode=mode, limit=1), start(2, mode, prompt=(7, 8), limit=1))
    gone = only(SessionGone, events)
    assert (gone.handle, gone.reason) == (1, t.FailureReason.INTERNAL)
    assert len(table.output(2)) == 1


def test_a_form_that_cannot_be_followed_costs_no_token_that_was_accepted():
    """Its states multiply with every token, until the row behind some has none any more."""
    structures = Structures(make_bundle(tiny_tokenizer(), tiny_model("llama")), VOCAB_SIZE)
    [letter] = tiny_tokenizer().encode("a")
    form = t.ResponseFormat(t.FormatKind.REGEX, ("(.*[a-z].{1,200}){1,40}",))
    table = Running(Saying(vocab=VOCAB_SIZE, says=letter), structures=structures)
    events = table.run(start(response_format=form, max_tokens=490, window=64, limit=0))
    for number in range(20):
        said = table.output()
        own = draft((letter,) * 64, said, number)
        events = table.run(own, limit(len(said) + 1), steps=1)
        if of_kind(SessionGone, events):
            break
    gone = only(SessionGone, events)
    assert gone.reason is t.FailureReason.FORMAT
    assert "cannot be followed" in gone.message
    assert len(table.output()) % 65 != 0, "the tokens before the dead end were dropped"
