"""Whoever dies, and whenever: the law of the whole text stays the target's own.

The real round machine and the real rules, enumerated (tests.proof.machine).
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from orchestrator.core.events import VerdictArrived
from orchestrator.core.pacing import Eager, Fixed

from services.contract.types import DraftTree, Proposal, ResolvedSampling, Role
from services.engine.sampling import RowContext, choose
from services.verifier.rules import walk_rows
from tests.proof.laws import VOCAB, Fate, drafted, one_hot, target, texts
from tests.proof.machine import check_every_moment, cluster, error
from tests.proof.real_rules import judged
from tests.proof.setups import BLOCK, COUPLED, MODES, STANDARD, Habits, Restless
from tests.proof.worlds import kill, restart

REAL, EXACT = Habits(judged), 1e-12

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


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: f"{setup[0].name}-{setup[1]}")
def test_at_whatever_moment_a_process_dies_the_law_stays(setup):
    check_every_moment(cluster(setup[0], REAL, *setup[1:]), STRIKES, EXACT)


@MODES
def test_texts_that_end_early_keep_their_law_whoever_dies(mode):
    worlds = cluster(mode, REAL, "chained", Fixed(3), stops=(0,), max_tokens=4, window=3)
    check_every_moment(worlds, STRIKES, EXACT)


def on_its_way(round_):
    return lambda world: any(getattr(own, "round", 0) == round_ for own in world.on(">v"))


def decided(round_):
    return lambda world: any(
        isinstance(event, VerdictArrived) and event.verdict.round == round_
        for event in world.on("v>")
    )


def unstored(round_):
    return lambda world: any(own.record.round == round_ for own in world.state.unpersisted)


@MODES
@pytest.mark.parametrize("stage", [on_its_way, decided, unstored], ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("round_", [1, 2, 3])
def test_a_death_before_during_and_after_a_round_changes_nothing(mode, stage, round_):
    """A worker's death, that is: what an orchestrator has not stored dies with it, so that
    the moment of its own death must not depend on how far the rounds have come."""
    worlds = cluster(mode, REAL, "chained")
    assert any(stage(round_)(world) for _, reached in worlds.sweep() for world in reached)
    for strike in DEATHS.values():
        assert worlds.distance(worlds.struck(stage(round_), strike)) < EXACT


def test_workers_that_die_again_and_again_change_nothing():
    assert error(cluster(BLOCK, REAL, "mortal", Fixed(2))) < EXACT


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
        def choices(rows):
            return [own.get(text + tree.token_ids[:row], 0) for _, row in rows]

        [walked] = walk_rows([tree], choices)
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
    for seed in range(800):
        habits, own = coupled_habits(seed)
        _, schedule, policy, max_in_flight = SETUPS[seed % len(SETUPS)]
        worlds = cluster(COUPLED, habits, schedule, policy, max_in_flight, seed=seed)
        strike = list(STRIKES.values())[seed // len(SETUPS) % len(STRIKES)]
        text = own[()], own[own[()],], own[own[()], own[own[()],]]
        assert struck_once(worlds, strike, seed % 41) == text, f"seed {seed}"
        undrafted.append(text)
    for text, weight in texts(3):
        assert abs(undrafted.count(text) / len(undrafted) - weight) < 0.06
