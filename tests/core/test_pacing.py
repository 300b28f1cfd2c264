import pytest

from orchestrator.core.pacing import (
    Chained,
    Eager,
    Fallback,
    FinishedRound,
    Fixed,
    Learned,
    Levels,
    Matched,
    Send,
    Thompson,
    View,
    Wait,
    make_policy,
)
from orchestrator.core.pacing.resting import (
    CALIBRATION,
    FIRST_REST,
    JUDGE_AFTER,
    LONGEST_IDLE,
    LONGEST_REST,
    PROBE_ROUNDS,
    RECALIBRATE,
)


def view(**changes) -> View:
    values = {"now": 10.0, "idle_since": 10.0, "drafted": 0, "drafting": True, "room": 100}
    return View(**{**values, **changes})


def drafted(accepted: int, ms: float = 10.0, tokens: int = 4) -> FinishedRound:
    return FinishedRound(tokens, accepted, accepted + 1, ms, draft_ms=2.0)


PLAIN = FinishedRound(0, 0, 1, 10.0, 0.0)


def test_eager_sends_whatever_is_there():
    assert Eager(16).decide(view(drafted=3)) == Send(3)


def test_eager_waits_a_moment_for_a_first_token_and_then_decodes_plainly():
    decision = Eager(16).decide(view())
    assert isinstance(decision, Wait)
    assert Eager(16).decide(view(now=decision.until)) == Send(0)


def test_eager_never_waits_longer_than_half_a_round():
    decision = (
        Eager(16).observe(FinishedRound(4, 2, 3, round_ms=4.0, draft_ms=400.0)).decide(view())
    )
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


def judged(outcome: FinishedRound, rounds: int = JUDGE_AFTER) -> Fallback:
    """A policy that knows what plain rounds take, after some rounds of one kind."""
    policy = observe(Fallback(Fixed(8)), [outcome] * CALIBRATION)
    return observe(policy, [PLAIN] * policy.resting + [outcome] * (rounds - CALIBRATION))


def test_what_plain_rounds_take_is_found_out_early_with_the_drafter_off():
    policy = observe(Fallback(Fixed(8)), [drafted(4)] * CALIBRATION)
    assert (policy.window, policy.decide(view(drafted=5))) == (0, Send(0))
    policy = observe(policy, [FinishedRound(0, 0, 1, 99.0, 0.0)] + [PLAIN] * (CALIBRATION - 1))
    assert policy.window == 8
    assert policy.plain.per_ms == pytest.approx(0.1), "the first one was sent beside a draft"


def test_what_plain_rounds_take_is_found_out_again_only_after_a_long_time():
    policy, off = judged(drafted(4)), 0
    for _ in range(RECALIBRATE + CALIBRATION):
        policy = policy.observe(PLAIN if policy.resting else drafted(4))
        off += policy.window == 0
    assert off == CALIBRATION


def test_drafts_that_keep_failing_are_given_up():
    policy = judged(drafted(0, ms=9.0))
    assert (policy.window, policy.decide(view(drafted=5))) == (0, Send(0))


def test_drafts_that_cost_more_than_they_bring_are_given_up():
    assert judged(drafted(1, ms=25.0)).window == 0


def test_the_wait_for_drafts_counts_as_their_cost():
    assert judged(FinishedRound(4, 1, 2, 12.0, draft_ms=2.0, waited_ms=13.0)).window == 0


def test_drafts_that_pay_are_kept():
    assert judged(drafted(1, ms=12.0), rounds=60).window == 8


def test_a_drafter_that_makes_the_verifier_slow_is_turned_off_even_if_it_is_hardly_used():
    beside = [
        FinishedRound(0, 0, 1, 14.0, 0.0, guessed=right) for right in (False, True, False, False)
    ]
    policy = observe(Fallback(Thompson(8)), beside)
    policy = observe(policy, [PLAIN] * CALIBRATION + beside[:1])
    assert policy.resting == FIRST_REST


def test_after_a_rest_drafts_are_tried_again_and_kept_when_they_pay_now():
    policy = judged(drafted(0))
    policy = observe(policy, [PLAIN] * policy.resting)
    assert policy.window == 8
    assert observe(policy, [drafted(4)] * PROBE_ROUNDS).window == 8


def rests(outcome: FinishedRound) -> list[int]:
    policy, lengths = judged(outcome, 2 * JUDGE_AFTER), []
    for _ in range(8):
        while not policy.resting:
            policy = policy.observe(outcome)
        lengths.append(policy.resting)
        policy = observe(policy, [PLAIN] * policy.resting)
    return lengths


def test_rests_grow_while_drafts_stay_bad_but_not_without_bound():
    wrong, harmful = rests(drafted(0, ms=10.0)), rests(drafted(0, ms=20.0))
    assert wrong[-2:] == [LONGEST_IDLE] * 2, "nobody is in its way"
    assert max(harmful) == LONGEST_REST
    for lengths in (wrong, harmful):
        assert lengths == sorted(lengths)


def test_a_drafter_that_has_nothing_to_say_is_not_turned_off():
    """An n-gram drafter waits for a text that repeats itself."""
    policy = make_policy("thompson", 8)
    off = 0
    for _ in range(100):
        policy = policy.observe(PLAIN)
        off += policy.window == 0
    assert off == CALIBRATION


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "thompson"}, Fallback(Thompson(4))),
        ({"name": "thompson", "exact": False}, Fallback(Thompson(4, Learned(exact=False)))),
        ({"name": "thompson", "trees": True}, Fallback(Levels(4))),
        (
            {"name": "thompson", "chained": True, "seed": 3},
            Chained(Fallback(Thompson(4, seed=3, chained=True))),
        ),
        ({"name": "matched"}, Fallback(Matched(4))),
        ({"name": "eager"}, Fallback(Eager(4))),
        ({"name": "eager", "trees": True, "chained": True}, Fallback(Levels(4))),
        ({"name": "fixed", "chained": True}, Fallback(Fixed(4))),
        ({"name": "fixed", "trees": True}, Fallback(Fixed(4))),
        ({"name": "eager", "fallback": False}, Eager(4)),
        ({"name": "eager", "fallback": False, "trees": True}, Fixed(4)),
        ({"name": "fixed", "fallback": False}, Fixed(4)),
    ],
)
def test_the_baselines_stay_what_they_are_where_they_are_asked_for(options, expected):
    assert make_policy(window=4, **options) == expected


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="'hasty'; known are thompson, matched, eager, fixed"):
        make_policy("hasty", 4)
