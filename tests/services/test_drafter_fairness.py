"""A saturated drafter drafts for every session equally often, and new prompts get in."""

from collections import Counter

import pytest

from services.contract.types import ResolvedSampling
from services.drafter.methods.model.model import ModelDrafter
from tests.services.drafter_kit import VOCAB, FakeEngine, FixedGrowth, Harness

WINDOW = 30


def harness():
    """Steps of four tokens, for more sessions than that."""
    engine = FakeEngine()
    drafter = ModelDrafter(engine, step_tokens=4, trees=lambda: FixedGrowth(3, 6, 24))
    return Harness(engine, drafter=drafter)


def drafted(table, steps):
    tokens = Counter()
    for _ in range(steps):
        table.core.step()
        for draft in table.drafted():
            tokens[draft.session] += len(draft.tree)
    return tokens


def filled(table, sessions):
    """Open chains whose prompts are in, and which then stand at the same length."""
    for i in range(sessions):
        table.open(f"chain {i}", [1, 2, i % VOCAB], window=0)
    for i in range(sessions):
        table.allow(f"chain {i}", 1)
    table.run()
    for i in range(sessions):
        table.allow(f"chain {i}", WINDOW)


def test_every_session_gets_a_token_a_step_however_many_there_are():
    table = harness()
    filled(table, 9)
    assert set(drafted(table, 12).values()) == {12}


@pytest.mark.parametrize("candidates", [1, 2])
def test_trees_and_long_prompts_take_no_turn_from_those_that_draft(candidates):
    table = harness()
    filled(table, 9)
    sampling = ResolvedSampling(max_tokens=20)
    table.open("long", [5] * 40, num_candidates=candidates, sampling=sampling)
    tokens = drafted(table, 24)
    assert {tokens[f"chain {i}"] for i in range(9)} == {24}
    assert tokens["long"] == 0
    # Forty tokens of prompt at one a step, what is kept for it, and then its draft.
    assert drafted(table, 20 + 5)["long"] > 0
