"""What the round machine tells pacing of a round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from orchestrator.core import rounds
from orchestrator.core.events import (
    DraftArrived,
    Event,
    Persisted,
    Tick,
)
from orchestrator.core.pacing import FinishedRound
from services.contract.types import EMPTY_HASH, Draft, DraftTree, VerifyMode, extend_hash
from tests.core.machine import Count, Machine


@dataclass(frozen=True)
class Told(Count):
    """Keeps what it is told."""

    outcomes: tuple[FinishedRound, ...] = field(default=())

    def observe(self, outcome: FinishedRound) -> Told:
        return replace(self, outcomes=(*self.outcomes, outcome))


def machine(count: int, mode: VerifyMode = VerifyMode.GREEDY, **options) -> Machine:
    made = Machine(mode, count, **options)
    made.state = replace(made.state, policy=Told(count, made.window))
    return made


def told(made: Machine) -> FinishedRound:
    policy = made.state.policy
    assert isinstance(policy, Told)
    return policy.outcomes[-1]


@pytest.mark.parametrize(("tail", "guessed"), [((5, 6), True), ((6, 5), False), ((), None)])
@pytest.mark.parametrize("mode", [VerifyMode.GREEDY, VerifyMode.STANDARD])
def test_pacing_learns_whether_the_drafter_had_the_token_of_a_plain_round(mode, tail, guessed):
    made = machine(0, mode).serve()
    if tail:
        made.draft(*tail)
    made.answer(5, accepted=0, whole=True)
    assert told(made).guessed is guessed
    assert told(made).draft_tokens == 0


def test_after_a_rejection_there_was_nothing_to_guess():
    outcome = told(machine(2).serve().draft(1, 2, 3).answer(1, 9, accepted=1, whole=False))
    assert (outcome.guessed, outcome.accepted_tokens, outcome.to_leaf) == (None, 1, False)


def test_after_a_whole_block_the_next_token_was_guessed_or_not():
    for bonus, guessed in ((3, True), (4, False)):
        made = machine(2).serve().draft(1, 2, 3).answer(1, 2, bonus, accepted=2, whole=True)
        assert told(made).guessed is guessed


def test_a_tree_is_told_by_its_levels_and_whether_a_leaf_was_reached():
    made = machine(2, num_candidates=2).serve()
    made.draft(1, 2, 3, 4, parents=(-1, -1, 0, 0), final=True)
    made.answer(2, 9, accepted=1, whole=True, nodes=(1,))
    outcome = told(made)
    assert (outcome.draft_tokens, outcome.depth, outcome.to_leaf) == (4, 2, True)


def later(made: Machine, event: Event, at: float) -> None:
    made.state, actions = rounds.step(made.state, replace(event, at=at))
    made.actions += actions


def arrive(made: Machine, *tokens: int, at: float) -> None:
    """A draft arrives at a time of its own."""
    state = made.state
    text = state.committed + state.speculated
    prefix = extend_hash(EMPTY_HASH, text)
    draft = Draft("s", state.epoch, len(state.committed), len(text), prefix, DraftTree(tokens))
    later(made, DraftArrived(at, "d", draft), at)


def test_the_wait_for_a_draft_is_told_and_no_other_delay():
    made = machine(2).serve()
    later(made, Tick(0.01), 0.01)
    arrive(made, 1, 2, at=0.03)
    made.answer(1, 2, 3, accepted=2, whole=True)
    assert told(made).waited_ms == pytest.approx(30.0)
    unhurried = machine(0)
    unhurried.serve()
    unhurried.answer(5, accepted=0, whole=True)
    unhurried.answer(6, accepted=0, whole=True)
    later(unhurried, Persisted(5.0, 2), 5.0)
    unhurried.answer(7, accepted=0, whole=True)
    assert [o.waited_ms for o in unhurried.state.policy.outcomes] == [0.0] * 3
