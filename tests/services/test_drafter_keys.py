"""No key of the DRAFT stream is ever drawn twice, whatever arrives and in whatever order."""

import random
from collections import Counter
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from services.contract import types as t
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.engine import noise
from services.engine.noise import Stream
from tests.services.drafter_kit import (
    EXACT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    Harness,
    SoftEngine,
    trunk_of,
)

LAW = t.ResolvedSampling(max_tokens=200, presence_penalty=0.3)


@contextmanager
def recorded():
    """Every key of the DRAFT stream that is derived, and how often."""
    keys = Counter()
    derive_key = noise.derive_key

    def recording(seed, stream, *counters):
        if stream is Stream.DRAFT:
            keys[seed, *counters] += 1
        return derive_key(seed, stream, *counters)

    with patch.object(noise, "derive_key", recording):
        yield keys


def draws(draft):
    """Candidates per drawn law of a draft."""
    return list(Counter(draft.tree.every_parent).values())


class Life:
    """A session with random steps, windows and openings, whose drafts are all taken."""

    def __init__(self, choice, harness, mode, candidates):
        self.choice, self.harness = choice, harness
        self.own = {"mode": mode, "sampling": LAW, "num_candidates": candidates, "window": 5}
        self.opening, self.known, self.trunk, self.drawn = 0, [], [], 0
        self.open()

    def open(self):
        """From all that is known, as behind a lost drafter."""
        self.opening += 1
        self.trunk = []
        own = self.own | {"opening": self.opening, "output": tuple(self.known)}
        self.harness.open("s", **own)

    def draft(self, levels):
        """Nothing is withheld: who has room drafts, and says no word of nothing."""
        for _ in range(levels):
            due = self.harness.session.due
            fed = self.harness.core.step()
            assert not due or fed
        for draft in self.harness.drafted():
            assert draft.tree.token_ids
            self.drawn += sum(draws(draft))
            if not draft.tree.is_chain:
                self.trunk = trunk_of([draft])

    def say(self, agreed, other):
        """A step takes so many drafted tokens, sent or not, and others behind them."""
        tail = self.harness.session.text[3 + len(self.known) :] or self.trunk
        fresh = [*tail[:agreed], *other]
        self.harness.say("s", len(self.known), fresh)
        self.known += fresh
        self.trunk = []

    def move(self):
        """Anything that may happen next."""
        kind, choice = self.choice.random(), self.choice
        if kind < 0.6:
            self.draft(choice.randint(1, 3))
        elif kind < 0.9:
            other = [choice.randrange(VOCAB)] if choice.random() < 0.6 else []
            agreed = choice.randrange(4)
            self.say(agreed, other if agreed or other else [choice.randrange(VOCAB)])
        elif kind < 0.96:
            self.harness.allow("s", choice.randint(0, 6))
        else:
            self.open()


ENGINES = [(FakeEngine, ModelDrafter), (SoftEngine, LookaheadDrafter)]


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("engine", "method"), ENGINES)
def test_no_key_is_drawn_twice_whatever_comes_and_nothing_is_withheld(
    engine, method, seed, candidates
):
    own = engine(capacity=10_000)
    harness = Harness(own, drafter=method(own))
    with recorded() as keys:
        life = Life(random.Random(seed), harness, SAMPLED[seed % 2], candidates)
        while len(life.known) < 180:
            life.move()
    assert keys.total() >= life.drawn > 100
    assert max(keys.values()) == 1


@pytest.mark.parametrize("candidates", [1, 2])
def test_a_step_that_failed_and_is_asked_again_draws_each_key_once(candidates):
    harness = Harness()
    harness.engine.explode = 9
    for name, prompt in (("good", [1, 2]), ("bad", [3, 9])):
        harness.open(name, prompt, mode=t.VerifyMode.BLOCK, num_candidates=candidates, window=3)
    with recorded() as keys:
        drafts = harness.run()
    assert sum(sum(draws(draft)) for draft in drafts) == keys.total()
    assert max(keys.values()) == 1


def test_a_drawn_tree_is_not_continued_from_a_text_that_grew_by_its_trunk():
    harness = Harness()
    harness.open(mode=t.VerifyMode.STANDARD, num_candidates=2, window=4)
    harness.steps(3)
    harness.say("s", 0, harness.state._comb.trunk[:1])
    with recorded() as keys:
        (draft,) = harness.run()
    nodes = {node for _, _, position, node, _ in keys if position == 1}
    assert (draft.position, nodes) == (1, {0, 1, 3, 5})
    assert keys.total() == len(draft.tree) == 8


@pytest.mark.parametrize("mode", EXACT)
def test_exact_modes_draw_nothing(mode):
    with recorded() as keys:
        assert Harness().drafts([1, 2], mode=mode, num_candidates=2)
    assert not keys
