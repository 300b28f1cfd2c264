"""Whoever dies, and whenever: the law of the whole text stays the target's own.

The real machine, mailbox and rules, enumerated (tests.proof.machine).
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from services.contract.frames import StepRow
from services.contract.types import DraftTree, Proposal, ResolvedSampling, Role
from services.engine.sampling import RowContext, choose
from tests.proof.laws import VOCAB, drafted, one_hot, target, texts
from tests.proof.machine import check_every_moment, cluster, error
from tests.proof.setups import (
    BLOCK,
    COUPLED,
    MODES,
    STANDARD,
    Habits,
    Restless,
    Sparing,
    real,
    trees_of,
)
from tests.proof.stepping import Stepping
from tests.proof.worlds import kill, restart

EXACT = 1e-12

pytestmark = pytest.mark.usefixtures("in_float64")

SETUPS = [
    (BLOCK, "ahead", Restless()),
    (BLOCK, "chained", Sparing()),
    (BLOCK, "slow verifier", Restless()),
    (STANDARD, "ahead", Sparing()),
    (STANDARD, "chained", Restless()),
    (STANDARD, "late drafts", Sparing()),
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
    mode, schedule, policy = setup
    check_every_moment(cluster(Habits(real(mode)), schedule, policy), STRIKES, EXACT)


@pytest.mark.parametrize("shape", [(-1, -1), (-1, -1, 0)], ids=["siblings", "a comb"])
def test_at_whatever_moment_a_process_dies_trees_leave_the_law(shape):
    habits = Habits(real(STANDARD), trees=trees_of(shape, without_replacement=True))
    check_every_moment(cluster(habits, "ahead", num_candidates=2), STRIKES, EXACT)


@MODES
def test_texts_that_end_early_keep_their_law_whoever_dies(mode):
    habits = Habits(real(mode, max_tokens=4, stops=(0,)))
    check_every_moment(cluster(habits, "chained", window=3), STRIKES, EXACT)


@MODES
def test_drafts_that_end_with_certain_tokens_keep_the_law_whoever_dies(mode):
    habits = Habits(real(mode), ends=lambda token: token == 0)
    check_every_moment(cluster(habits, "chained"), DEATHS, EXACT)


def running(step):
    """While a step of this number runs: what it judges was drawn, and is nobody's yet."""
    return lambda world: (
        world.verifier is not None
        and world.verifier.doing is not None
        and world.state.rounds + len(world.joined) + _told(world) == step - 1
    )


def decided(step):
    """Before anybody has heard of it."""
    return lambda world: _told(world) > 0 and world.state.rounds + len(world.joined) == step - 1


def unstored(step):
    """The orchestrator knows of it alone."""
    return lambda world: (
        world.state.rounds == step and len(world.stored) < len(world.state.committed)
    )


def _told(world):
    return sum(isinstance(said.what, StepRow) for said in world.on("v>"))


@MODES
@pytest.mark.parametrize("stage", [running, decided, unstored], ids=lambda stage: stage.__name__)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_death_before_during_and_after_a_step_changes_nothing(mode, stage, step):
    """A worker's death, that is: what an orchestrator has not stored dies with it, so that
    the moment of its own death must not depend on how far the steps have come."""
    worlds = cluster(Habits(real(mode)), "late drafts")
    assert any(stage(step)(world) for _, reached in worlds.sweep() for world in reached)
    for strike in DEATHS.values():
        assert worlds.distance(worlds.struck(stage(step), strike)) < EXACT


@MODES
def test_workers_that_die_again_and_again_change_nothing(mode):
    assert error(cluster(Habits(real(mode)), "mortal")) < EXACT


def coupled_habits(seed):
    """Target and drafter sample with the noise of one seed; nothing else is random."""
    contexts = [text for length in range(3) for text in product(range(VOCAB), repeat=length)]
    laws = [target(text) for text in contexts] + [drafted(text) for text in contexts]
    sampling = ResolvedSampling(max_tokens=3)
    rows = [RowContext(COUPLED, sampling, seed, len(text)) for text in contexts] * 2
    chosen = choose(torch.tensor(laws).log(), rows)
    own = dict(zip(contexts, chosen, strict=False))
    guess = dict(zip(contexts, chosen[len(contexts) :], strict=True))
    habits = Habits(
        Stepping(COUPLED, sampling, seed=seed),
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
        _, schedule, policy = SETUPS[seed % len(SETUPS)]
        worlds = cluster(habits, schedule, policy)
        strike = list(STRIKES.values())[seed // len(SETUPS) % len(STRIKES)]
        text = own[()], own[own[()],], own[own[()], own[own[()],]]
        assert struck_once(worlds, strike, seed % 41) == text, f"seed {seed}"
        undrafted.append(text)
    for text, weight in texts(3):
        assert abs(undrafted.count(text) / len(undrafted) - weight) < 0.06
