"""Whoever dies, and whenever: the law of the whole text stays the target's own.

The real round machine and the real rules, enumerated (tests.proof.machine): three
tokens, a law for each context, all draws of both workers.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from orchestrator.core import rounds
from orchestrator.core.events import VerdictArrived
from orchestrator.core.pacing import Eager, Fixed
from services.common.engine.sampling import RowContext, choose
from services.common.types import DraftTree, Proposal, ResolvedSampling, Role, Verify, VerifyMode
from services.verifier.rules import walk
from tests.proof.laws import (
    VOCAB,
    Fate,
    bad_row,
    by_hand,
    downgraded,
    drafted,
    is_bad,
    one_hot,
    target,
    texts,
)
from tests.proof.machine import Cluster, Habits, Restless, sampled, session
from tests.proof.real_rules import judged
from tests.proof.worlds import kill, restart

STANDARD, BLOCK, COUPLED = VerifyMode.STANDARD, VerifyMode.BLOCK, VerifyMode.COUPLED
MODES = pytest.mark.parametrize("mode", [STANDARD, BLOCK], ids=lambda mode: mode.name)
EXACT, WRONG = 1e-12, 1e-3
REAL = Habits(judged)

SETUPS = [
    (BLOCK, "ahead", Restless(2), 2),
    (BLOCK, "chained", Eager(2), 2),
    (BLOCK, "slow verifier", Restless(2), 1),
    (STANDARD, "ahead", Eager(2), 1),
    (STANDARD, "chained", Restless(2), 2),
    (STANDARD, "late drafts", Fixed(2), 1),
]
DEATHS = {
    "the verifier dies": lambda world: kill(world, Role.VERIFIER),
    "the verifier is given up and answers late": lambda world: kill(
        world, Role.VERIFIER, late=True
    ),
    "the drafter dies": lambda world: kill(world, Role.DRAFTER),
    "the drafter is given up and drafts late": lambda world: kill(world, Role.DRAFTER, late=True),
    "both die": lambda world: kill(kill(world, Role.VERIFIER), Role.DRAFTER),
}
STRIKES = DEATHS | {"the orchestrator dies": restart}


@pytest.fixture(autouse=True, scope="module")
def _deep_recursion():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def cluster(mode, schedule="ahead", policy=None, max_in_flight=2, habits=REAL, **more):
    config = session(mode, max_in_flight=max_in_flight, **more)
    return Cluster(config, policy or Restless(config.window), schedule, habits)


def error(worlds):
    return worlds.distance(worlds.law(worlds.first()))


def small_blocks():
    """Every chain of at most three tokens after every text that leaves room for it."""
    for length, size in product(range(4), range(4)):
        for text in product(range(VOCAB), repeat=length) if length + size <= 3 else ():
            for tokens in product(range(VOCAB), repeat=size):
                if all(drafted(text + tokens[:i])[token] for i, token in enumerate(tokens)):
                    yield text, tokens


def chain(text, tokens, row_of=sampled):
    trees = [row_of(text + tokens[:i], token) for i, token in enumerate(tokens)]
    return DraftTree(tokens, None, tuple(tree.q[0] for tree in trees), Proposal.SAMPLED)


def unusable_after_two(text, token):
    """A drafter whose row is no law wherever the text ends in 2: a matter of content."""
    if text[-1:] != (2,):
        return sampled(text, token)
    return DraftTree((token,), None, (bad_row(drafted(text)),), Proposal.SAMPLED)


# --- the rules --------------------------------------------------------------------


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
        tree = chain(text, tokens, row_of)
        real, paper = gathered(judged(text, tree, mode)), gathered(by_hand(text, tree, mode))
        for key in real.keys() | paper.keys():
            np.testing.assert_allclose(real.get(key, 0), paper.get(key, 0), rtol=0, atol=1e-14)


# --- without a crash --------------------------------------------------------------


@MODES
@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("policy", [Restless(3), Fixed(3)], ids=["restless", "fixed"])
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained"])
def test_the_text_has_the_targets_law(mode, schedule, policy, max_in_flight):
    assert error(cluster(mode, schedule, policy, max_in_flight, max_tokens=4, window=3)) < EXACT


@MODES
def test_the_schedules_bring_whole_blocks_chained_ones_and_late_ones(mode):
    seen = set()

    def watched(text, tree, mode):
        seen.add(len(tree))
        return judged(text, tree, mode)

    worlds = cluster(mode, "chained", Restless(3), habits=Habits(watched), max_tokens=4, window=3)
    sent = {
        (len(block.tree) > 0, block.extends_round > 0, block.want_bonus)
        for _, reached in worlds.sweep()
        for world in reached
        for block in world.on(">v")
        if isinstance(block, Verify)
    }
    assert seen >= {0, 1}
    assert sent >= {(True, False, False), (True, True, False), (True, True, True)}


@MODES
def test_a_stop_token_ends_the_text_where_the_target_would_end_it(mode):
    assert error(cluster(mode, "chained", stops=(0,), max_tokens=4, window=3)) < EXACT


@MODES
@pytest.mark.parametrize(
    "policy", [Restless(2), Eager(2), Fixed(2)], ids=lambda p: type(p).__name__
)
def test_a_drafter_may_end_its_draft_with_a_token_for_that_tokens_sake(mode, policy):
    habits = Habits(judged, ends=lambda token: token == 0)
    assert error(cluster(mode, "chained", policy, habits=habits)) < EXACT


@MODES
def test_a_row_of_q_that_is_no_law_costs_its_own_token_alone(mode):
    habits = Habits(judged, tree=unusable_after_two)
    assert error(cluster(mode, max_tokens=4, window=3, habits=habits)) < EXACT


# --- crash points -----------------------------------------------------------------


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup[0].name}-{setup[1]}")
def test_at_whatever_moment_a_process_dies_the_law_stays(setup):
    worlds = cluster(*setup)
    for name, strike in STRIKES.items():
        for moment, law in enumerate(worlds.struck_at_each_slot(strike)):
            assert worlds.distance(law) < EXACT, f"{name} in slot {moment}"


def on_its_way(round_):
    return lambda world: any(getattr(own, "round", 0) == round_ for own in world.on(">v"))


def decided(round_):
    return lambda world: any(
        isinstance(event, VerdictArrived) and event.verdict.round == round_
        for event in world.on("v>")
    )


def unstored(round_):
    return lambda world: any(own.record.index == round_ for own in world.state.unpersisted)


@MODES
@pytest.mark.parametrize("stage", [on_its_way, decided, unstored], ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_a_death_before_during_and_after_a_round_changes_nothing(mode, stage, round_):
    """A worker's death, that is: what an orchestrator has not stored dies with it, so that
    the moment of its own death must not depend on how far the rounds have come."""
    worlds = cluster(mode, "chained")
    assert any(stage(round_)(world) for _, reached in worlds.sweep() for world in reached)
    for strike in DEATHS.values():
        assert worlds.distance(worlds.struck(stage(round_), strike)) < EXACT


@MODES
def test_workers_that_die_again_and_again_change_nothing(mode):
    assert error(cluster(mode, "mortal", Restless(2))) < EXACT


def coupled_habits(seed):
    """Target and drafter sample with the noise of one seed; nothing else is random."""
    contexts = [text for length in range(3) for text in product(range(VOCAB), repeat=length)]
    laws = [target(text) for text in contexts] + [drafted(text) for text in contexts]
    sampling = ResolvedSampling()
    rows = [RowContext(COUPLED, sampling, seed, len(text)) for text in contexts] * 2
    chosen = choose(torch.tensor(laws).log(), rows)
    own = dict(zip(contexts, chosen, strict=False))
    guess = dict(zip(contexts, chosen[len(contexts) :], strict=True))

    def rule(text, tree, _mode):
        walked = walk(tree, [own.get(text + tree.token_ids[:i], 0) for i in range(len(tree) + 1)])
        return [Fate(1.0, len(walked.path), walked.all_accepted, one_hot(walked.final_token))]

    habits = Habits(
        rule,
        law=lambda text: one_hot(guess[text]),
        tree=lambda _, token: DraftTree((token,), proposal=Proposal.COUPLED),
    )
    return habits, own


def struck_once(worlds, strike, moment):
    """The one text there is without draws, if everything is struck at one moment."""
    for slot, reached in worlds.sweep():
        [world] = reached
        if slot == moment or world.finished:
            law = worlds.law(world if world.finished else strike(world), slot)
            [place] = law.nonzero()[0]
            return next(text for text, at in worlds.index.items() if at == place)


def test_coupled_text_is_the_undrafted_one_whoever_dies():
    undrafted = []
    for seed in range(2000):
        habits, own = coupled_habits(seed)
        _, schedule, policy, max_in_flight = SETUPS[seed % len(SETUPS)]
        worlds = cluster(COUPLED, schedule, policy, max_in_flight, habits, seed=seed)
        strike = list(STRIKES.values())[seed // len(SETUPS) % len(STRIKES)]
        text = own[()], own[own[()],], own[own[()], own[own[()],]]
        assert struck_once(worlds, strike, seed % 41) == text, f"seed {seed}"
        undrafted.append(text)
    for text, weight in texts(3):
        assert abs(undrafted.count(text) / len(undrafted) - weight) < 0.06


# --- wrong ways, which the same figures must tell ---------------------------------


@MODES
def test_a_verdict_lost_for_what_it_says_is_seen(mode):
    worlds = cluster(mode, "chained")

    def whole(world):
        heard = [event.verdict for event in world.on("v>") if isinstance(event, VerdictArrived)]
        return any(verdict.all_accepted and verdict.accepted for verdict in heard)

    law = worlds.struck(whole, STRIKES["the verifier dies"])
    assert worlds.distance(law) > WRONG


@MODES
def test_choosing_between_an_abandoned_verdict_and_its_retry_is_seen(mode):
    def better(text, tree, mode):
        for one, other in product(judged(text, tree, mode), repeat=2):
            best = max(one, other, key=lambda fate: fate.accepted)
            yield Fate(one.weight * other.weight, best.accepted, best.all_accepted, best.law)

    assert error(cluster(mode, habits=Habits(better))) > WRONG


def forget_unmatched_bonus(world, event):
    """Keep the tail whatever the bonus was, as if none had been drawn."""
    tail = world.state.tail
    if not isinstance(event, VerdictArrived) or not tail or not event.verdict.all_accepted:
        return world, event
    verdict, own = event.verdict, world.verifier
    if verdict.accepted == len(verdict.token_ids) or verdict.accepted == 0:
        return world, event
    if verdict.token_ids[-1] == tail[0].tree.token_ids[0]:
        return world, event
    verdict = replace(verdict, token_ids=verdict.token_ids[:-1])
    own = replace(own, text=own.text[:-1], last=verdict)
    return replace(world, verifier=own), replace(event, verdict=verdict)


@MODES
def test_an_independent_bonus_beside_a_surviving_tail_is_seen(mode, monkeypatch):
    monkeypatch.setattr(rounds, "_wants_bonus", lambda *_: True)
    right = cluster(mode, "slow verifier", max_in_flight=1, max_tokens=4, window=3)
    assert error(right) < EXACT, "a tail that starts with the bonus may stay"
    habits = Habits(judged, deliver=forget_unmatched_bonus)
    wrong = cluster(mode, "slow verifier", max_in_flight=1, max_tokens=4, window=3, habits=habits)
    assert error(wrong) > WRONG


@MODES
def test_a_drafter_that_holds_tokens_back_for_what_they_are_is_seen(mode):
    habits = Habits(judged, holds=lambda token: token == 0)
    assert error(cluster(mode, "ahead", habits=habits)) > WRONG


@MODES
def test_downgrading_the_whole_block_for_one_bad_row_is_seen(mode):
    def rule(text, tree, mode):
        if any(is_bad(row) for row in tree.q or ()):
            return downgraded(text, tree)
        return judged(text, tree, mode)

    habits = Habits(rule, tree=unusable_after_two)
    assert error(cluster(mode, max_tokens=4, window=3, habits=habits)) > WRONG
