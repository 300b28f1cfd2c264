"""The round machine with the real rules: the law of the whole text is the target's own.

Enumerated (tests.proof.machine) with three tokens, a law for each context, and all
draws of both workers; first the rules alone, held against a reading of the papers.
"""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from orchestrator.core.events import VerdictArrived
from orchestrator.core.pacing import Eager, Fixed

from services.contract.types import DraftTree, Proposal, Verify
from tests.proof.laws import VOCAB, by_hand, drafted
from tests.proof.machine import cluster, error
from tests.proof.real_rules import judged
from tests.proof.setups import BLOCK, MODES, Habits, Restless, sampled, unusable_after_two

REAL, EXACT = Habits(judged), 1e-12


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
@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("policy", [Restless(3), Fixed(3)], ids=["restless", "fixed"])
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained"])
def test_the_text_has_the_targets_law(mode, schedule, policy, max_in_flight):
    worlds = cluster(mode, REAL, schedule, policy, max_in_flight, max_tokens=4, window=3)
    assert error(worlds) < EXACT


@MODES
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained", "late drafts"])
def test_a_block_that_goes_with_the_opening_leaves_the_law_as_it_is(mode, schedule):
    more = {"max_tokens": 4, "window": 3, "plain_ahead": True}
    worlds = cluster(mode, REAL, schedule, Restless(3), 2, **more)
    assert error(worlds) < EXACT


def test_the_schedules_bring_plain_whole_and_chained_blocks_with_and_without_bonus():
    sent, discarded = set(), 0
    for policy in (Fixed(3), Restless(3)):
        worlds = cluster(BLOCK, REAL, "chained", policy, max_tokens=4, window=3)
        for world in chain.from_iterable(reached for _, reached in worlds.sweep()):
            blocks = [block for block in world.on(">v") if isinstance(block, Verify)]
            sent |= {(len(own.tree), own.extends_round > 0, own.want_bonus) for own in blocks}
            heard = [event for event in world.on("v>") if isinstance(event, VerdictArrived)]
            discarded += any(event.verdict.discarded for event in heard)
    plain, whole = (0, False, True), (3, False, True)
    assert sent >= {plain, whole, (1, False, False), (1, True, False), (1, True, True)}
    assert discarded


@MODES
def test_a_stop_token_ends_the_text_where_the_target_would_end_it(mode):
    assert error(cluster(mode, REAL, "chained", stops=(0,), max_tokens=4, window=3)) < EXACT


@MODES
@pytest.mark.parametrize(
    "policy", [Restless(2), Eager(2), Fixed(2)], ids=lambda p: type(p).__name__
)
def test_a_drafter_may_end_its_draft_with_a_token_for_that_tokens_sake(mode, policy):
    habits = Habits(judged, ends=lambda token: token == 0)
    assert error(cluster(mode, habits, "chained", policy)) < EXACT


@MODES
def test_a_row_of_q_that_is_no_law_costs_its_own_token_alone(mode):
    habits = Habits(judged, tree=unusable_after_two)
    assert error(cluster(mode, habits, max_tokens=4, window=3)) < EXACT
