"""The adaptive policy against a simulated verifier and drafter, learning included.

A verifier of 70 ms, 3 ms a draft token; a drafter of 11 ms a token behind a hop of 2 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from orchestrator.core.pacing import Decision, FinishedRound, Send, Thompson, View, Wait
from orchestrator.core.pacing import make_policy as make
from services.scheduling.step_time import StepTimeModel
from tests.core.pacing_world import Acceptance, Costs, Session

ROUNDS = 200
SEEDS = range(6)
BASE = Costs()


@dataclass(frozen=True)
class Steady:
    """One k for ever; it waits for them, or takes of them what is there."""

    k: int
    waits: bool
    window: int = 16

    def decide(self, view: View) -> Decision:
        if view.drafted >= self.k or not self.waits:
            return Send(min(self.k, view.drafted))
        return Wait(1e9)

    def observe(self, outcome: FinishedRound) -> Steady:
        return self


def speed(policy, accepted: Acceptance, costs: Costs = BASE) -> float:
    """Tokens per millisecond, as a multiple of plain decoding's, over all seeds."""
    runs = [Session(policy, accepted, costs, seed=seed).run(ROUNDS) for seed in SEEDS]
    return sum(run.tokens for run in runs) / sum(run.now for run in runs) * costs.plain


def best_choice(accepted: Acceptance, costs: Costs = BASE) -> float:
    """The best that one k for ever reaches."""
    choices = [Steady(k, waits) for k in range(11) for waits in (True, False)]
    return max(speed(choice, accepted, costs) for choice in choices)


def always(rate: float) -> Acceptance:
    return lambda place: rate


TEXTS = {
    "never": always(0.0),
    "rarely": always(0.1),
    "sometimes": always(0.3),
    "half": always(0.5),
    "mostly": always(0.8),
    "good, then bad": lambda place: 0.8 if place < 150 else 0.0,
    "bad, then good": lambda place: 0.0 if place < 100 else 0.8,
    "by turns": lambda place: 0.8 if (place // 60) % 2 else 0.05,
}


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_never_slower_than_plain_decoding(text):
    for seed in SEEDS:
        run = Session(make("thompson", 16), TEXTS[text], seed=seed).run(ROUNDS)
        assert run.per_ms * BASE.plain >= 0.98


@pytest.mark.parametrize("rounds", [10, 20, 40])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_it_is_not_slower_in_the_first_seconds_either(rate, rounds):
    """Ten rounds are 0.7 seconds; up to a few milliseconds of trials in them."""
    for seed in SEEDS:
        run = Session(make("thompson", 16), always(rate), seed=seed).run(rounds)
        assert run.now - run.tokens * BASE.plain <= 0.02 * run.now + 40.0


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_it_is_about_as_fast_as_the_best_choice_known_in_advance(rate):
    assert speed(make("thompson", 16), always(rate)) >= 0.93 * best_choice(always(rate))


@pytest.mark.parametrize("text", ["bad, then good", "by turns"])
def test_it_profits_when_a_text_becomes_predictable(text):
    assert speed(make("thompson", 16), TEXTS[text]) >= 1.15


def test_with_a_drafter_that_costs_nothing_it_waits_for_whole_blocks():
    free = Costs(draft=1.0)
    late = Session(make("thompson", 16), always(0.8), free).run(ROUNDS).sent[50:]
    assert sum(late) / len(late) > 4
    assert speed(make("thompson", 16), always(0.8), free) >= 0.93 * best_choice(always(0.8), free)


def test_where_a_row_is_dear_it_sends_few():
    dear = Costs(row=30.0)
    assert max(Session(make("thompson", 16), always(0.5), dear).run(ROUNDS).sent[50:]) <= 2
    assert speed(make("thompson", 16), always(0.3), dear) >= 0.97
    assert speed(make("thompson", 16), always(0.8), dear) >= 0.93 * best_choice(always(0.8), dear)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.8])
def test_a_drafter_too_slow_to_be_waited_for_costs_next_to_nothing(rate):
    assert speed(make("thompson", 16), always(rate), Costs(draft=80.0)) >= 0.98


def test_a_drafter_that_slows_the_verifier_down_is_turned_off():
    shared = Costs(beside=1.5)
    run = Session(make("thompson", 16), always(0.3), shared).run(ROUNDS)
    assert run.windows.count(0) > 0.8 * ROUNDS
    assert run.per_ms * shared.plain >= 0.95


def test_a_drafter_whose_guesses_pay_without_a_wait_is_not_turned_off():
    slow = Costs(draft=25.0)
    run = Session(make("thompson", 16), always(0.45), slow).run(ROUNDS)
    assert len([wait for wait in run.waits[20:] if wait]) < 0.1 * ROUNDS, "to wait does not pay"
    assert run.windows.count(0) < 0.1 * ROUNDS
    assert run.per_ms * slow.plain > 1.05


def test_guessing_shows_for_free_that_drafts_are_bad():
    run = Session(make("thompson", 16), always(0.0)).run(ROUNDS)
    assert sum(run.waits) + 3.0 * sum(run.sent) < 0.01 * run.now


def test_drafts_are_probed_less_and_less_often_while_nothing_comes_of_them():
    sent = Session(Thompson(16), always(0.0)).run(600).sent
    probes = [at for at, count in enumerate(sent) if count]
    gaps = [after - before for before, after in pairwise(probes)]
    assert 3 <= len(probes) <= 8
    assert gaps == sorted(gaps)


# --- the test can fail ---------------------------------------------------------------


class Careless(Thompson):
    """Takes rows to be free."""

    def observe(self, outcome: FinishedRound) -> Careless:
        learned = Thompson.observe(self, outcome).learned
        costs = learned.costs._replace(line=StepTimeModel(1.0, 1.0, learned.costs.step_ms(0)))
        return self._replace(learned=learned).informed(learned._replace(costs=costs))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("mutant", "rate", "costs"),
    [
        (Steady(16, waits=False), 0.5, Costs(draft=1.0)),
        (Steady(4, waits=True), 0.1, BASE),
        (make("eager", 16), 0.1, BASE),
        (Careless(16), 0.3, Costs(row=30.0)),
    ],
    ids=["never waits", "always waits", "always waits a moment", "takes rows to be free"],
)
def test_a_policy_that_gets_one_thing_wrong_is_found_out(mutant, rate, costs):
    good = speed(make("thompson", 16), always(rate), costs)
    bound = 0.98 if rate < 0.5 else 0.93 * best_choice(always(rate), costs)
    if costs.row > BASE.row:
        bound = 0.97
    assert speed(mutant, always(rate), costs) < bound <= good
