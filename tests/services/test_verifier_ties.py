"""Near-ties in verdicts: each emitted token counts once, whatever was drafted."""

import pytest

from services.contract import types as t
from services.engine.sampling import ties
from tests.fake_engine import VOCAB, FakeEngine, law
from tests.services.verifier_bench import (
    COUPLED,
    GREEDY,
    PROMPT,
    TEXT,
    Table,
    block,
    opening,
    other,
)

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


def table(engine=None, **more):
    """A verifier on which a session is open, and what it counts."""
    counted = []
    made = Table(engine or Tied(), on_choices=lambda *of: counted.append(of))
    made.opened(**more)
    return made, counted


def text_of(engine, count):
    text = list(PROMPT)
    for _ in range(count):
        text.append(int(engine.logits(text).argmax()))
    return tuple(text[len(PROMPT) :])


SAID = text_of(Tied(), 20)


def drafting(count, text=SAID):
    """Always right, so many tokens at a time."""
    return lambda said: (text[len(said) :][:count], None)


def test_each_token_that_a_verdict_brings_counts_once():
    made, counted = table()
    verdict = made.verdict(block(1, 0, (*SAID[:4], other(SAID[4]), 0)))
    assert verdict.token_ids == SAID[:5]
    assert verdict.near_ties == 3
    assert counted == [("greedy", 5, 3)]


def test_rows_that_no_walk_reaches_do_not_count():
    made, _ = table()
    verdict = made.verdict(block(1, 0, (SAID[0], other(SAID[1]), SAID[2], SAID[3], SAID[4])))
    assert verdict.token_ids == SAID[:2]
    assert verdict.near_ties == 1


def test_a_token_that_is_kept_back_counts_when_it_is_emitted():
    made, counted = table()
    first = made.verdict(block(1, 0, SAID[:3], want_bonus=False))
    assert first.token_ids == SAID[:3]
    second = made.verdict(block(2, 3, SAID[3:5], want_bonus=True))
    assert second.token_ids == SAID[3:6]
    assert [first.near_ties, second.near_ties] == [1, 2]
    assert counted == [("greedy", 3, 1), ("greedy", 3, 2)]


def test_blocks_of_every_size_and_trees_count_the_same():
    for size in (1, 2, 3, 5):
        made, counted = table()
        out = made.decode(opening("d"), drafting(size - 1), 10)
        assert tuple(out) == SAID[:10]
        tokens = sum(tokens for _, tokens, _ in counted)
        expected = sum(position < tokens for position in TIED)
        assert sum(near for _, _, near in counted) == expected
    made, counted = table()
    tokens = (other(SAID[0]), SAID[0], other(SAID[1]), SAID[1])
    verdict = made.verdict(block(1, 0, tokens, (-1, -1, 1, 1)))
    assert (verdict.token_ids, verdict.near_ties) == (SAID[:3], 1)


def test_a_verdict_that_is_told_again_counts_once():
    made, counted = table()
    ask = block(1, 0, SAID[:2])
    assert made.verdict(ask) == made.verdict(ask)
    assert counted == [("greedy", 3, 1)]


def test_the_threshold_is_that_of_the_number_format(monkeypatch):
    for dtype, near in (("float32", 0), ("bfloat16", 1)):
        monkeypatch.setattr(ties, "ROUNDING", {"float32": 1e-3, "bfloat16": 1e3})
        engine = FakeEngine()
        engine.dtype = dtype
        made, _ = table(engine)
        assert made.verdict(block(1, 0)).near_ties == near


@pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])
def test_where_chance_decides_nothing_is_counted(mode):
    made, counted = table(mode=mode)
    assert made.verdict(block(1, 0)).near_ties == 0
    assert counted == []


def test_coupled_choices_are_counted_by_logits_and_noise(monkeypatch):
    monkeypatch.setattr(ties, "ROUNDING", {"float32": 1e3})
    made, counted = table(mode=COUPLED)
    assert made.verdict(block(1, 0)).near_ties == 1
    # A tie of logits is none once the noise is added.
    monkeypatch.setattr(ties, "ROUNDING", {"float32": 1e-3})
    made, counted = table(mode=COUPLED)
    assert made.verdict(block(1, 0)).near_ties == 0
    assert counted == [("coupled", 1, 0)]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_texts_do_not_depend_on_what_counts_as_near(mode, monkeypatch):
    texts = set()
    for widest in (0.0, 1e-3, 1e3):
        monkeypatch.setattr(ties, "ROUNDING", {"float32": widest})
        made, _ = table(FakeEngine())
        texts.add(tuple(made.decode(opening("d", mode), drafting(3, TEXT), 30)))
    assert len(texts) == 1
    assert mode is COUPLED or texts == {TEXT[:30]}
