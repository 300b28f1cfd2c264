"""A crowd drafts where that brings more tokens by time, and else decodes plainly."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from services.scheduling.crowd_trial import ANOTHER, ANOTHER_S, LEAST, CrowdTrial
from services.scheduling.draft_budget import EAGER, DraftBudget
from services.scheduling.offers import Judged, Offer

PLAIN_S = 0.01


def share_drafted(
    trial: CrowdTrial,
    gain: Callable[[float], float],
    *,
    sessions: int = 24,
    seconds: float = 120.0,
    noise: float = 0.1,
    seed: int = 5,
) -> float:
    """Of that time, how much was drafted in; `gain`: by drafts, at a time."""
    random, now, drafted = Random(seed), 0.0, 0.0
    while now < seconds:
        tokens, took = 1, PLAIN_S * random.uniform(1 - noise, 1 + noise)
        if trial.drafts:
            tokens, took = 2, 2 * took / gain(now)
            drafted += took
        for _ in range(sessions):
            trial.advanced(sessions, tokens, took)
        now += took
    return drafted / seconds


def pass_by(trial: CrowdTrial, sessions: int, seconds: float) -> None:
    """So many sessions step for so long."""
    for _ in range(round(seconds / PLAIN_S) * sessions):
        trial.advanced(sessions, 1, PLAIN_S)


@pytest.mark.parametrize(("gain", "least", "most"), [(1.3, 0.93, 1.0), (0.7, 0.0, 0.08)])
def test_the_better_way_is_kept(gain: float, least: float, most: float) -> None:
    assert least <= share_drafted(CrowdTrial(), lambda _: gain) <= most


def test_what_becomes_better_is_found_out() -> None:
    assert 0.3 < share_drafted(CrowdTrial(), lambda now: 0.7 if now < 60 else 1.3) < 0.55
    assert 0.45 < share_drafted(CrowdTrial(), lambda now: 1.3 if now < 60 else 0.7) < 0.7


def test_few_sessions_always_draft() -> None:
    assert share_drafted(CrowdTrial(), lambda _: 0.7, sessions=LEAST - 1) == pytest.approx(1, 0.01)


def test_a_crowd_that_goes_lets_the_rest_draft() -> None:
    trial = CrowdTrial()
    share_drafted(trial, lambda _: 0.7, seconds=10)
    assert not trial.drafts
    pass_by(trial, LEAST - 1, 0.9 * ANOTHER_S)
    assert not trial.drafts
    pass_by(trial, LEAST - 1, 0.2 * ANOTHER_S)
    assert trial.drafts


def test_who_ends_and_begins_makes_no_other_crowd() -> None:
    trial = CrowdTrial()
    share_drafted(trial, lambda _: 0.7, seconds=30)
    drafted = 0.0
    for _ in range(20):
        pass_by(trial, 5, 0.3 * ANOTHER_S)
        drafted += share_drafted(trial, lambda _: 0.7, seconds=3.0)
    assert drafted / 20 < 0.15


def test_another_crowd_is_tried_anew() -> None:
    trial = CrowdTrial()
    share_drafted(trial, lambda _: 0.7, seconds=60)
    # It is kept at first: a crowd that grows is not to be slowed down on the way.
    many = int(24 * ANOTHER) + 1
    pass_by(trial, many, 1.1 * ANOTHER_S)
    assert not trial.drafts
    assert share_drafted(trial, lambda _: 1.3, sessions=many, seconds=10) > 0.8


def test_what_stood_still_says_nothing() -> None:
    trial = CrowdTrial()
    for _ in range(10_000):
        trial.advanced(24, 1, 5.0)
    assert trial.drafts


def resting_crowd() -> DraftBudget:
    """Beside it one session that a baseline's policy drafts for, one that nobody drafts for."""
    budget = DraftBudget()
    for _ in range(400):
        offers = [Offer(key, "one", 2, window=4, drafted_for=True) for key in range(12)]
        offers.append(Offer("eager", "one", 2, window=4, drafted_for=True, pacing=EAGER))
        offers.append(Offer("plain", "one", 0, window=4))
        drafting = budget.window(0, 4) > 0
        for offer, own in zip(offers, budget.allot(offers), strict=True):
            if own.tokens:
                budget.judged(Judged(offer.key, own.tokens, 1))
            # A step takes the same; what drafts cost is between steps.
            budget.advanced(offer.key, 1 + min(own.tokens, 1), 0.04 if drafting else 0.01)
        budget.stepped(len(offers), 24, 10.0)
        if not budget.window(0, 4) and not budget.window(11, 4):
            return budget
    pytest.fail("it never rests")


def test_nobody_drafts_for_a_crowd_that_drafts_cost_time_between_steps() -> None:
    budget = resting_crowd()
    assert budget.window("eager", 4) == 4
    for key in range(12):
        budget.forget(key)
    late = Offer("late", "one", 2, window=4, drafted_for=True)
    budget.allot([late])
    for _ in range(110):
        budget.advanced("late", 1, 0.01)
    assert budget.window("late", 4)


def test_who_comes_new_rests_with_the_crowd() -> None:
    budget = resting_crowd()
    budget.allot([Offer("late", "one", 0, window=4, drafted_for=True)])
    assert budget.window("late", 4) == 0
