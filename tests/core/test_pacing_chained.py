"""Blocks sent before the verdict on the last one, and blocks as long as a step."""

from functools import reduce

import pytest

from orchestrator.core.pacing import (
    Chained,
    Eager,
    Fallback,
    FinishedRound,
    Flight,
    Learned,
    Matched,
    RoundCosts,
    Send,
    Thompson,
    View,
    Wait,
    make_policy,
)
from orchestrator.core.pacing.resting import CALIBRATION

# A step of 20 ms, 4 ms for the way there and back; a token is drafted in 5 ms.
ROUND = FinishedRound(4, 4, 5, 24.0, 20.0, verify_ms=20.0, guessed=True, batch_rows=5)
PLAIN = FinishedRound(0, 0, 1, 24.0, 0.0, verify_ms=20.0, batch_rows=1)


def view(**changes) -> View:
    values = {"now": 10.0, "idle_since": 10.0, "drafted": 0, "drafting": True, "room": 100}
    return View(**{**values, **changes})


def under_way(now: float, drafted: int = 3, *, bonus: bool = True) -> View:
    """A block of four tokens left at 10.0."""
    return view(now=now, drafted=drafted, live=(Flight(10.0, 4),), bonus=bonus)


def after(policy, outcomes):
    return reduce(lambda so_far, outcome: so_far.observe(outcome), outcomes, policy)


# --- Chained ---------------------------------------------------------------------


def test_no_block_is_chained_before_the_way_is_known():
    assert Chained(Eager(8)).decide(under_way(11.0)) == Send(0)


def test_a_chained_block_waits_until_it_would_arrive_when_the_verifier_is_free():
    policy = after(Chained(Eager(8)), [ROUND] * 20)
    # 2 ms there, 20 ms of the step, less the 2 ms that the next one travels.
    assert policy.decide(under_way(10.001)) == Wait(pytest.approx(10.020))
    assert isinstance(policy.decide(under_way(10.0199)), Wait)
    assert isinstance(policy.decide(under_way(10.0201)), Send)


def test_of_two_blocks_under_way_the_second_is_verified_after_the_first():
    policy = after(Chained(Eager(8)), [ROUND] * 20)
    both = (Flight(10.0, 4), Flight(10.020, 4))
    assert policy.decide(view(live=both, drafted=3)) == Wait(pytest.approx(10.040))


def test_a_chained_block_holds_the_bonus_and_what_the_inner_policy_sends_after_it():
    policy = after(Chained(Eager(8)), [ROUND] * 20)
    assert policy.decide(under_way(11.0, drafted=3)) == Send(3)
    assert policy.decide(under_way(11.0, drafted=3, bonus=False)) == Send(3)
    assert Chained(Eager(8), policy.costs).decide(under_way(11.0, drafted=0)) == Send(1)


def test_nothing_is_chained_while_the_drafter_rests():
    policy = after(Chained(Fallback(Eager(8))), [ROUND] * CALIBRATION)
    assert policy.window == 0
    assert policy.costs.transit_ms
    assert policy.decide(under_way(11.0, drafted=3)) == Send(0)


def test_with_nothing_under_way_the_inner_policy_decides():
    assert after(Chained(Eager(8)), [ROUND]).decide(view(drafted=3)) == Send(3)


# --- Matched ---------------------------------------------------------------------


def matched(*, exact: bool = True) -> Matched:
    return after(Matched(16, Learned(exact)), [ROUND, PLAIN] * 20)


def test_a_matched_block_takes_as_long_to_draft_as_to_verify():
    policy = matched()
    assert (policy.length, policy.window) == (5, 11)


def test_after_a_rejection_the_verifier_goes_on_without_a_draft():
    assert matched().decide(view()) == Send(0)


def test_by_rejection_the_first_token_is_waited_for_and_sent_alone():
    policy = matched(exact=False)
    decision = policy.decide(view())
    assert isinstance(decision, Wait)
    assert policy.decide(view(now=decision.until)) == Send(0)
    assert policy.decide(view(drafting=False)) == Send(0)


def test_as_long_as_blocks_are_accepted_whole_ones_are_waited_for():
    policy = matched()
    decision = policy.decide(view(drafted=2))
    assert isinstance(decision, Wait)
    assert policy.decide(view(drafted=2, now=decision.until)) == Send(2)
    assert policy.decide(view(drafted=9)) == Send(5)


# --- Costs -----------------------------------------------------------------------


def test_a_step_costs_what_all_the_rows_in_it_do():
    steps = [
        FinishedRound(
            k, k, k + 1, 1.0, verify_ms=10.0 + rows, draft_ms=1.0, batch_size=8, batch_rows=rows
        )
        for k, rows in [(0, 8), (1, 16), (2, 24), (4, 40)] * 40
    ]
    costs = after_costs(steps)
    # Eight sessions that each send one token more add eight rows.
    assert costs.step_ms(1) - costs.step_ms(0) == pytest.approx(8.0, rel=0.05)


def after_costs(outcomes, costs: RoundCosts | None = None) -> RoundCosts:
    return reduce(lambda so_far, one: so_far.add(one), outcomes, costs or RoundCosts())


def test_the_queue_counts_as_a_share_of_the_step_and_the_rest_as_the_way():
    waited = FinishedRound(1, 1, 2, 34.0, 5.0, verify_ms=20.0, queue_ms=10.0, batch_rows=2)
    costs = after_costs([waited] * 60)
    assert costs.transit_ms == pytest.approx(4.0)
    assert costs.queue_share == pytest.approx(0.5, abs=0.01)
    assert costs.round_ms(1) == pytest.approx(34.0, rel=0.01)


def test_a_chained_round_says_nothing_of_the_way_but_what_its_step_took():
    before = after_costs([ROUND] * 20)
    chained = ROUND._replace(round_ms=90.0, queue_ms=50.0, verify_ms=40.0, chained=True)
    costs = after_costs([chained] * 20, before)
    assert (costs.transit_ms, costs.queue_share) == (before.transit_ms, before.queue_share)
    assert costs.step_ms(4) > 1.5 * before.step_ms(4)


def beside(sessions: int, queue_ms: float) -> RoundCosts:
    """Plain rounds in steps of 20 ms with so many sessions."""
    took = 24.0 + queue_ms
    one = FinishedRound(0, 0, 1, took, 0.0, verify_ms=20.0, queue_ms=queue_ms, batch_size=sessions)
    return after_costs([one._replace(batch_rows=sessions)] * 60)


def test_a_late_block_misses_the_step_of_those_beside_unless_it_would_lie_anyway():
    assert beside(1, 0.0).late_ms == 0.0, "nobody is beside"
    assert beside(20, 0.0).late_ms == pytest.approx(19.0, rel=0.05)
    assert beside(2, 0.0).late_ms == pytest.approx(10.0, rel=0.05)
    assert beside(2, 15.0).late_ms == 0.0, "two that take turns"


def test_in_a_crowd_nobody_waits_for_drafts_that_a_lone_session_waits_for():
    """Drafts of 1 ms a token that are always right; what is there is sent by both."""

    def learned(sessions: int) -> Thompson:
        one = FinishedRound(
            2, 2, 3, 24.0, 2.0, verify_ms=20.0, batch_size=sessions, batch_rows=3 * sessions
        )
        return after(Thompson(4), [one._replace(guessed=True)] * 40)

    lone, crowded = learned(1).plan, learned(24).plan
    assert lone is not None
    assert crowded is not None
    assert all(lone.waits(ready) for ready in range(4))
    assert not any(crowded.waits(ready) for ready in range(4))
    assert lone.best(4) == crowded.best(4) == 4


# --- Hits ------------------------------------------------------------------------


def test_tokens_after_a_rejected_one_are_no_failures():
    short, long = (after(Thompson(16), [sent(k, 1)] * 40).learned for k in (2, 16))
    assert (short.first, short.later) == (long.first, long.later)


def sent(k: int, accepted: int) -> FinishedRound:
    return FinishedRound(k, accepted, accepted + 1, 24.0, 5.0 * k, verify_ms=20.0, batch_rows=k + 1)


def test_a_block_that_ends_before_a_rejection_is_none():
    learned = after(Thompson(16), [sent(3, 3)] * 40).learned
    assert learned.later.hits == learned.later.tries


# --- Crowds ----------------------------------------------------------------------


def crowd(k: int, sessions: int, *, hit: bool) -> FinishedRound:
    """A session's round in a step that everybody sends `k` tokens to."""
    rows = sessions * (k + 1)
    step, accepted = 20.0 + rows, min(k, int(hit))
    return FinishedRound(
        k,
        accepted,
        accepted + 1,
        step + 2.0,
        1.0 * k,
        guessed=None if k else hit,
        verify_ms=step,
        batch_size=sessions,
        batch_rows=rows,
    )


def settled(policy: Thompson, sessions: int, rounds: int) -> tuple[Thompson, list[int]]:
    """What it sends of eight ready tokens, of which every second block's first one is right."""
    blocks: list[int] = []
    for number in range(rounds):
        decision = policy.decide(view(drafted=8, now=10.5))
        assert isinstance(decision, Send)
        blocks.append(decision.count)
        policy = policy.observe(crowd(decision.count, sessions, hit=number % 2 == 0))
    return policy, blocks


def test_a_crowded_step_leaves_no_room_for_drafts_and_an_empty_one_does_again():
    policy, alone = settled(Thompson(8), 1, 200)
    assert min(alone[-20:]) >= 1
    policy, crowded = settled(policy, 64, 400)
    assert crowded[-100:].count(0) >= 70
    _, alone_again = settled(policy, 1, 400)
    assert alone_again[-100:].count(0) <= 10


# --- Determinism -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["thompson", "matched", "eager"])
def test_the_same_outcomes_and_seed_lead_to_the_same_decisions(name):
    policies = [make_policy(name, 8, chained=True, seed=7) for _ in range(2)]
    for number in range(100):
        views = [view(drafted=number % 9), under_way(10.0 + number / 1000)]
        assert policies[0] == policies[1]
        for seen in views:
            assert policies[0].decide(seen) == policies[1].decide(seen)
        outcome = sent(number % 5, min(number % 3, number % 5))
        policies = [policy.observe(outcome) for policy in policies]


def test_another_seed_draws_other_rates():
    one, other = (after(Thompson(8, seed=seed), [sent(4, 2)] * 8) for seed in (1, 2))
    assert one.learned == other.learned
    assert one.drawn != other.drawn
