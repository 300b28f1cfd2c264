from __future__ import annotations

import pytest

from orchestrator.core.pacing import (
    FIRST_REST,
    JUDGE_AFTER,
    LONGEST_REST,
    PROBE_ROUNDS,
    Eager,
    Fallback,
    Fixed,
    Outcome,
    Send,
    View,
    Wait,
    make_policy,
)


def view(**changes) -> View:
    values = {"now": 10.0, "idle_since": 10.0, "drafted": 0, "drafting": True, "room": 100}
    return View(**{**values, **changes})


def drafted(accepted: int, ms: float = 10.0, tokens: int = 4) -> Outcome:
    return Outcome(tokens, accepted, accepted + 1, ms, draft_ms=2.0)


PLAIN = Outcome(0, 0, 1, 10.0, 0.0)


def test_eager_sends_whatever_is_there():
    assert Eager(16).decide(view(drafted=3)) == Send(3)


def test_eager_waits_a_moment_for_a_first_token_and_then_decodes_plainly():
    decision = Eager(16).decide(view())
    assert isinstance(decision, Wait)
    assert Eager(16).decide(view(now=decision.until)) == Send(0)


def test_eager_never_waits_longer_than_half_a_round():
    policy = Eager(16).observe(Outcome(4, 2, 3, round_ms=4.0, draft_ms=400.0))
    decision = policy.decide(view())
    assert isinstance(decision, Wait)
    assert decision.until <= 10.002


@pytest.mark.parametrize("policy", [Eager(4), Fixed(4)])
def test_nobody_waits_for_a_drafter_that_will_not_draft(policy):
    assert policy.decide(view(drafting=False)) == Send(0)


def test_fixed_waits_for_a_whole_block():
    assert isinstance(Fixed(4).decide(view(drafted=3)), Wait)
    assert Fixed(4).decide(view(drafted=4)) == Send(4)
    assert Fixed(4).decide(view(drafted=7)) == Send(4)


def test_fixed_sends_less_when_its_patience_ends():
    assert Fixed(4).decide(view(drafted=3, now=11.0)) == Send(3)


@pytest.mark.parametrize("policy", [Eager(16), Fixed(8)])
def test_a_block_fits_before_the_length_limit(policy):
    assert policy.decide(view(drafted=8, room=2)) == Send(2)


def observe(policy, outcomes):
    for outcome in outcomes:
        policy = policy.observe(outcome)
    return policy


def test_drafts_that_keep_failing_are_given_up():
    policy = observe(Fallback(Eager(8)), [drafted(0)] * JUDGE_AFTER)
    assert policy.window == 0
    assert policy.decide(view(drafted=5)) == Send(0)


def test_drafts_that_cost_more_than_they_bring_are_given_up():
    policy = observe(Fallback(Eager(8)), [PLAIN] * 3 + [drafted(1, ms=25.0)] * JUDGE_AFTER)
    assert policy.window == 0


def test_drafts_that_pay_are_kept():
    policy = observe(Fallback(Eager(8)), [PLAIN] * 3 + [drafted(1, ms=12.0)] * 50)
    assert policy.window == 8


def test_after_a_rest_drafts_are_tried_again_and_kept_when_they_pay_now():
    policy = observe(Fallback(Eager(8)), [drafted(0)] * JUDGE_AFTER + [PLAIN] * FIRST_REST)
    assert policy.window == 8
    policy = observe(policy, [drafted(4)] * PROBE_ROUNDS)
    assert policy.window == 8


def test_rests_grow_while_drafts_stay_bad_but_not_without_bound():
    policy = observe(Fallback(Eager(8)), [drafted(0)] * JUDGE_AFTER)
    rests = []
    for _ in range(8):
        rests.append(policy.resting)
        policy = observe(policy, [PLAIN] * policy.resting + [drafted(0)] * PROBE_ROUNDS)
    assert rests[:3] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST]
    assert max(rests) == LONGEST_REST


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="unknown pacing 'hasty'; known are eager, fixed"):
        make_policy("hasty", 4)
