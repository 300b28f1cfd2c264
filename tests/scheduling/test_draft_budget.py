"""How much of its drafts a verifier verifies: by what rows cost, what drafts bring, for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import pytest

from services.contract.types import StepTime
from services.scheduling.draft_budget import EAGER, FIXED, LONGEST_REST, MATCHED, DraftBudget
from services.scheduling.offers import Allotment, Judged, Offer
from services.scheduling.step_costs import StepCosts
from services.scheduling.tree_budget import believed

Cost = Callable[[int, int], float]


def gpu(sessions: int, extra: int) -> float:
    """Milliseconds of a step whose rows cost next to nothing."""
    return (6.6 if extra else 6.2) + 0.012 * extra + 0.045 * (sessions - 1)


def cpu(sessions: int, extra: int) -> float:
    """Milliseconds of a step whose rows cost a tenth of it."""
    return 20 + 3.0 * (sessions + extra)


TOLD = [StepTime(rows, 20 + 3.0 * rows) for rows in (1, 2, 4, 8, 16, 32, 64)]


class Outcome(NamedTuple):
    """Tokens by time over plain decoding; the longest step's mean over a plain one's."""

    gain: float
    longer: float
    pace: list[float]


def run(
    agreement: Sequence[float],
    cost: Cost,
    *,
    tenants: Sequence[str] = (),
    told: Sequence[StepTime] = (),
    steps: int = 1500,
    window: int = 8,
) -> Outcome:
    """Sessions whose draft tokens are right by chance, steps that are sometimes late."""
    random, budget = Random(7), DraftBudget(told)
    sessions = len(agreement)
    spent, plain, tokens = 0.0, 0.0, [0] * sessions
    for _ in range(steps):
        offers = [
            Offer(
                key,
                tenants[key] if tenants else "one",
                random.randint(0, budget.window(key, window)),
                source="model",
                window=window,
            )
            for key in range(sessions)
        ]
        allotted = [own.tokens for own in budget.allot(offers)]
        late = random.choice((1.0, 1.0, 1.0, 1.05))
        took = cost(sessions, sum(allotted)) * late
        budget.stepped(sessions, sum(allotted), took)
        spent, plain = spent + took, plain + cost(sessions, 0) * late
        for key, (offer, judged) in enumerate(zip(offers, allotted, strict=True)):
            assert judged <= offer.tokens
            accepted = 0
            while accepted < judged and random.random() < agreement[key]:
                accepted += 1
            if judged:
                budget.judged(Judged(key, judged, accepted))
            budget.advanced(key, 1 + accepted, took / 1e3)
            tokens[key] += 1 + accepted
    pace = [own / steps * plain / spent for own in tokens]
    return Outcome(sum(pace) / sessions, spent / plain, pace)


@pytest.mark.parametrize("sessions", [1, 4, 24, 64])
def test_where_rows_cost_nothing_good_drafts_pay_in_any_crowd(sessions: int) -> None:
    assert run([0.7] * sessions, gpu).gain > 1.7


@pytest.mark.parametrize("cost", [gpu, cpu])
@pytest.mark.parametrize("sessions", [1, 4, 24])
def test_drafts_that_are_always_wrong_cost_next_to_nothing(sessions: int, cost: Cost) -> None:
    assert run([0.0] * sessions, cost, told=TOLD if cost is cpu else ()).gain > 0.97


@pytest.mark.parametrize(("sessions", "least"), [(1, 1.55), (4, 1.1), (24, 0.98)])
def test_where_rows_cost_drafts_are_as_long_as_they_pay(sessions: int, least: float) -> None:
    assert run([0.7] * sessions, cpu, told=TOLD).gain > least


def test_nobodys_predictable_text_makes_the_others_steps_much_longer() -> None:
    found = run([1.0] + [0.0] * 7, gpu)
    assert found.pace[0] > 2
    assert min(found.pace) > 1 / 1.16


def test_a_crowd_that_gains_drafts_also_while_some_of_it_have_no_draft() -> None:
    costly = [StepTime(rows, 20.0 + 0.4 * rows) for rows in (1, 16, 64, 256)]

    def cost(sessions: int, extra: int) -> float:
        return 20.0 + 0.4 * (sessions + extra)

    crowd = run([0.9] * 38 + [0.0] * 2, cost, told=costly)
    tenant = run([0.9] * 38 + [0.0] * 2, cost, told=costly, tenants=["one"] * 38 + ["two"] * 2)
    assert crowd.longer > 1.16 > tenant.longer


def test_where_room_is_short_tenants_take_turns() -> None:
    tenants = ["many"] * 6 + ["few"] * 2
    found = run([0.95] * 6 + [0.7] * 2, cpu, tenants=tenants, told=TOLD)
    assert min(found.pace[6:]) > min(found.pace[:6]) * 0.8
    assert found.gain > 1


def test_a_session_whose_drafts_do_not_pay_lets_its_drafter_rest_and_tries_again() -> None:
    budget, resting, tried = DraftBudget(), 0, []
    for step in range(2000):
        ahead = budget.window("s", 8)
        resting += not ahead
        [own] = budget.allot([Offer("s", "one", ahead, source="model", window=8)])
        budget.stepped(1, own.tokens, 10.0 + 4.0 * own.tokens)
        if own.tokens:
            tried.append(step)
            budget.judged(Judged("s", own.tokens, 0))
        budget.advanced("s", 1, 0.01)
    assert resting > 1700
    assert tried[-1] > 2000 - 2 * LONGEST_REST


def drafted_late(budget: DraftBudget, key: str, steps: int, *, in_time: int = 0) -> int:
    """Steps with drafts of four tokens, of which the first `in_time` are there; how many rest."""
    resting = 0
    for _ in range(steps):
        ahead = budget.window(key, 8)
        resting += not ahead
        if ahead:
            budget.drafted(key, 4, 4.0, False)
        held = in_time if ahead else 0
        [own] = budget.allot([Offer(key, "one", held, source="model", window=8)])
        budget.stepped(1, own.tokens, 6.6 if own.tokens else 6.2)
        if own.tokens:
            budget.judged(Judged(key, own.tokens, own.tokens))
        budget.advanced(key, 1 + own.tokens, 0.0066)
    return resting


def test_a_session_whose_drafts_come_too_late_lets_its_drafter_rest() -> None:
    assert drafted_late(DraftBudget(), "s", 2000) > 1500
    assert drafted_late(DraftBudget(), "s", 2000, in_time=1) < 50


def test_drafts_that_come_in_time_end_the_rests() -> None:
    budget = DraftBudget()
    assert drafted_late(budget, "s", 600) > 300
    drafted_late(budget, "s", LONGEST_REST, in_time=1)
    assert drafted_late(budget, "s", 600, in_time=1) == 0


def test_a_session_begins_with_the_rest_of_those_whose_drafts_come_too_late() -> None:
    budget = DraftBudget()
    drafted_late(budget, "s", 600)
    assert drafted_late(budget, "new", 16) >= 15
    drafted_late(budget, "s", LONGEST_REST + 100, in_time=1)
    assert drafted_late(budget, "newer", 16, in_time=1) == 0


def test_a_drawn_tokens_own_chance_has_no_part_in_it() -> None:
    """In STANDARD and BLOCK: whatever its drafter says of it."""
    offer = Offer("s", "one", 3, exact=False, window=8)
    budget = DraftBudget()
    assert budget.chances(offer._replace(reach=(0.9, 0.5, 0.1))) == budget.chances(offer)
    assert budget.chances(offer._replace(exact=True, reach=(0.9, 0.5, 0.1))) != budget.chances(
        offer
    )


def test_chances_that_a_drafter_exaggerates_are_corrected() -> None:
    budget, reach = DraftBudget(), (0.9, 0.8)
    offer = Offer("s", "one", 2, reach=reach, window=8)
    before = budget.chances(offer)
    budget.allot([offer])
    for _ in range(60):
        budget.judged(Judged("s", 2, 0, reach))
    after = budget.chances(offer)
    assert before == [0.9, 0.8]
    assert max(after) < 0.2
    # Another session of the tenant, and another tenant's, begin with what is known.
    assert max(budget.chances(offer._replace(key="t"))) < 0.3
    assert max(budget.chances(offer._replace(key="u", tenant="two"))) < 0.4


def test_what_is_remembered_of_tenants_is_bounded() -> None:
    budget = DraftBudget()
    for tenant in range(5000):
        budget.chances(Offer(tenant, tenant, 1, window=1))
        budget.forget(tenant)
    assert len(budget._known) <= 1024
    assert not budget._sessions


def test_a_baseline_waits_for_its_whole_draft() -> None:
    budget = DraftBudget()
    offer = Offer("s", "one", 3, window=5, pacing=FIXED)
    [waits] = budget.allot([offer])
    assert waits.hold_s > 0
    assert budget.allot([offer._replace(tokens=5)]) == [Allotment(5)]
    assert budget.allot([offer._replace(final=True)]) == [Allotment(3)]
    assert budget.allot([offer._replace(pacing=EAGER)]) == [Allotment(3)]


def test_a_baseline_verifies_what_a_step_takes_to_draft() -> None:
    budget = DraftBudget([StepTime(1, 6.0), StepTime(8, 6.0)])
    offer = Offer("s", "one", 8, window=8, pacing=MATCHED, draft_ms=2.0)
    assert budget.allot([offer]) == [Allotment(3)]


def test_costs_are_learned_beside_what_was_told() -> None:
    costs = StepCosts(TOLD)
    assert costs.ms(1, 0) == pytest.approx(23)
    assert costs.ms(1, 7) == pytest.approx(44)
    for _ in range(300):
        costs.observe(1, 0, 46.0)
        costs.observe(1, 7, 88.0)
    assert costs.ms(1, 0) == pytest.approx(46, rel=0.05)
    assert costs.ms(1, 7) == pytest.approx(88, rel=0.05)


def test_one_stall_does_not_mislead() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.observe(1, 0, 10.0)
        costs.observe(1, 2, 11.0)
    costs.observe(1, 0, 5000.0)
    costs.observe(1, 2, 5000.0)
    assert costs.ms(1, 0) < 11
    assert costs.ms(1, 2) < 13


def test_a_drafter_is_no_further_ahead_than_drafts_hold() -> None:
    budget, offer = DraftBudget(), Offer("s", "one", 8, source="model", window=16)
    budget.allot([offer])
    unknown = budget.window("s", 16)
    for _ in range(60):
        budget.judged(Judged("s", 8, 8))
    good = budget.window("s", 16)
    for _ in range(200):
        budget.judged(Judged("s", 8, 0))
    assert 1 <= budget.window("s", 16) < unknown < good == 16
    budget.allot([offer._replace(pacing=FIXED)])
    assert budget.window("s", 16) == 16


def test_in_a_crowd_a_drafter_is_less_far_ahead() -> None:
    budget = DraftBudget()
    ahead = []
    for sessions in (1, 8):
        offers = [
            Offer(key, "one", 4, source="model", window=16, drafted_for=True)
            for key in range(sessions)
        ]
        budget.allot(offers)
        ahead.append(budget.window(0, 16))
    assert ahead[0] > ahead[1] > 1


def test_chances_are_believed_by_their_range_and_fall():
    factors = (1.0, 1.0, 1.0, 1.0, 0.5, 1.0)
    assert believed((0.8, 0.6, 0.4), factors) == pytest.approx([0.8, 0.3, 0.3])
