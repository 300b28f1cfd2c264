"""The machine, the mailbox and the real rules: the law of the whole text is the target's own.

Enumerated (tests.proof.machine) with three tokens, a law for each context, and all
draws of both workers; first the rules alone, held against a reading of the papers.
"""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest

from orchestrator.steering import credit
from services.contract.types import DraftTree, Proposal
from tests.proof.laws import VOCAB, by_hand, drafted
from tests.proof.machine import cluster, error
from tests.proof.real_rules import judged
from tests.proof.setups import (
    BLOCK,
    MODES,
    STANDARD,
    Fixed,
    Habits,
    Restless,
    Sparing,
    real,
    sampled,
    trees_of,
    unusable_after_two,
)

EXACT = 1e-12
POLICIES = pytest.mark.parametrize(
    "policy", [Restless(), Fixed(3), Sparing()], ids=["restless", "fixed", "sparing"]
)
SHAPES = {
    "siblings": (-1, -1, -1),
    "a comb": (-1, -1, 0),
    "two branches": (-1, 0, -1, 2),
    "two levels": (-1, -1, 0, 0),
}

pytestmark = pytest.mark.usefixtures("in_float64")


def small_blocks():
    """Every chain of at most three tokens after every text that leaves room for it."""
    for length, size in product(range(4), range(4)):
        for text in product(range(VOCAB), repeat=length) if length + size <= 3 else ():
            for tokens in product(range(VOCAB), repeat=size):
                if all(drafted(text + tokens[:i])[token] for i, token in enumerate(tokens)):
                    yield text, tokens


def chain_of(text, tokens, row_of=sampled):
    trees = [row_of(text + tokens[:i], token) for i, token in enumerate(tokens)]
    return DraftTree(tokens, None, tuple(tree.q[0] for tree in trees), Proposal.SAMPLED)


def gathered(fates):
    """Fates with the same accepted tokens together: their mass, and the law that follows."""
    sums = {}
    for fate in fates:
        key = (fate.accepted, fate.all_accepted)
        sums[key] = sums.get(key, 0) + fate.weight * np.array([1.0, *fate.law])
    return sums


@MODES
@pytest.mark.parametrize("row_of", [sampled, unusable_after_two])
def test_the_real_rules_do_what_the_papers_say_worked_out_by_hand(mode, row_of):
    for text, tokens in small_blocks():
        tree = chain_of(text, tokens, row_of)
        real, paper = gathered(judged(text, tree, mode)), gathered(by_hand(text, tree, mode))
        for key in real.keys() | paper.keys():
            np.testing.assert_allclose(real.get(key, 0), paper.get(key, 0), rtol=0, atol=1e-14)


@MODES
@POLICIES
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained", "late drafts"])
def test_the_text_has_the_targets_law(mode, schedule, policy):
    habits = Habits(real(mode, max_tokens=4))
    assert error(cluster(habits, schedule, policy, window=3)) < EXACT


@MODES
@pytest.mark.parametrize("schedule", ["ahead", "late drafts"])
def test_credit_that_is_used_up_leaves_the_law_as_it_is(mode, schedule, monkeypatch):
    monkeypatch.setattr(credit, "LEAST", 1)
    monkeypatch.setattr(credit, "MOST", 1)
    worlds = cluster(Habits(real(mode, max_tokens=4)), schedule, Restless(), window=3)
    stood = sum(
        own is not None and 0 < own.limit <= len(own.text) < 4
        for _, reached in worlds.sweep()
        for own in (world.verifier for world in reached)
    )
    assert stood
    assert error(worlds) < EXACT


def test_the_schedules_bring_plain_steps_and_drafts_that_come_whole_in_parts_and_late():
    seen = set()
    for schedule, policy in product(("ahead", "chained"), (Fixed(3), Restless(), Sparing())):
        worlds = cluster(Habits(real(BLOCK, max_tokens=4)), schedule, policy, window=3)
        for world in chain.from_iterable(reached for _, reached in worlds.sweep()):
            own = world.verifier
            if own is not None and own.doing is not None:
                seen.add((own.doing.size, bool(own.doing.came)))
    assert {size for size, _ in seen} == {0, 1, 2, 3}
    assert {came for _, came in seen} == {False, True}


@MODES
def test_a_stop_token_ends_the_text_where_the_target_would_end_it(mode):
    habits = Habits(real(mode, max_tokens=4, stops=(0,)))
    assert error(cluster(habits, "chained", window=3)) < EXACT


@MODES
@pytest.mark.parametrize(
    "policy", [Restless(), Fixed(2), Sparing()], ids=["restless", "fixed", "sparing"]
)
def test_a_drafter_may_end_its_draft_with_a_token_for_that_tokens_sake(mode, policy):
    habits = Habits(real(mode), ends=lambda token: token == 0)
    assert error(cluster(habits, "chained", policy)) < EXACT


@MODES
def test_a_row_of_q_that_is_no_law_costs_its_own_token_alone(mode):
    habits = Habits(real(mode, max_tokens=4), tree=unusable_after_two)
    assert error(cluster(habits, window=3)) < EXACT


@pytest.mark.parametrize("without", [False, True], ids=["with", "without replacement"])
@pytest.mark.parametrize("policy", [Restless(), Sparing()], ids=["whole", "cut"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("schedule", ["ahead", "late drafts"])
def test_trees_leave_the_law_as_it_is(schedule, shape, policy, without):
    """Also those that lose nodes, go down to what was said meanwhile, and come late."""
    habits = Habits(real(STANDARD), trees=trees_of(SHAPES[shape], without_replacement=without))
    assert error(cluster(habits, schedule, policy, num_candidates=3)) < EXACT
