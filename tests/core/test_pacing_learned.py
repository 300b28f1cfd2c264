"""What the adaptive policies learn, and what they plan by it."""

from itertools import pairwise

import pytest

from orchestrator.core.pacing import (
    Experience,
    Fallback,
    FinishedRound,
    Fixed,
    Levels,
    Send,
    Thompson,
)
from orchestrator.core.pacing.learned import SEED_WEIGHT, Learned, Share
from orchestrator.core.pacing.plan import expected, make_plan
from orchestrator.core.pacing.thompson import FIRST_PROBE
from services.scheduling.step_time import StepTimeModel
from tests.core.pacing_world import Session
from tests.core.test_pacing import observe, view


def chain(sent: int, accepted: int, **more) -> FinishedRound:
    ms = {"round_ms": 70.0 + 3.0 * sent, "draft_ms": 11.0 * sent} | more
    return FinishedRound(sent, accepted, accepted + 1, **ms)


def plain(guessed: bool | None = None, ms: float = 70.0) -> FinishedRound:
    return FinishedRound(0, 0, 1, ms, 0.0, guessed=guessed)


def tree(levels: int, accepted: int, *, whole: bool) -> FinishedRound:
    ms = 70.0 + 6.0 * levels
    return FinishedRound(3 * levels, accepted, accepted + 1, ms, 11.0 * levels, 0.0, levels, whole)


def taught(*outcomes: FinishedRound, exact: bool = True) -> Learned:
    return observe_all(Learned(exact), outcomes)


def observe_all(learned: Learned, outcomes) -> Learned:
    for outcome in outcomes:
        learned = learned.add(outcome)
    return learned


# --- costs ---------------------------------------------------------------------------


def test_the_line_through_rounds_of_several_widths_is_found():
    line = StepTimeModel()
    for n in (0, 4, 1, 2, 0, 8, 3) * 4:
        line = line.add(n, 70.0 + 3.0 * n)
    assert [line.at(n) for n in (0, 1, 10)] == pytest.approx([70.0, 73.0, 100.0], rel=0.01)


def test_rounds_of_one_width_leave_the_slope_as_it_is():
    line = StepTimeModel()
    for n in (0, 4) * 10:
        line = line.add(n, 70.0 + 3.0 * n)
    slope = line.slope
    for _ in range(500):
        line = line.add(4, 82.0)
    assert line.slope == pytest.approx(slope, rel=0.01)


def test_the_line_never_falls():
    line = StepTimeModel()
    for n in range(8):
        line = line.add(n, 100.0 - 5.0 * n)
    assert (line.slope, line.at(16)) == (0.0, line.at(0))


def test_one_stall_says_little_and_a_lasting_change_is_learned():
    line = StepTimeModel()
    for _ in range(30):
        line = line.add(0, 70.0)
    assert line.add(0, 7000.0).at(0) < 80.0
    for _ in range(100):
        line = line.add(0, 700.0)
    assert line.at(0) == pytest.approx(700.0, rel=0.05)


def test_what_a_wait_takes_beyond_drafting_is_the_hop():
    learned = taught(*[chain(2, 1, waited_ms=22.0 + 9.0)] * 40)
    assert (learned.draft_ms, learned.hop_ms) == pytest.approx((11.0, 9.0), rel=0.01)


def test_a_wait_for_the_rest_of_a_block_says_nothing_of_the_hop():
    assert taught(*[chain(4, 1, waited_ms=11.0)] * 40).hop_ms == Learned().hop_ms


def test_a_wait_in_vain_makes_waiting_dearer():
    before = taught(*[chain(1, 0, waited_ms=13.0)] * 4)
    assert (
        before.add(FinishedRound(0, 0, 1, 70.0, 0.0, waited_ms=60.0)).hop_ms > before.hop_ms + 5.0
    )


# --- acceptance ----------------------------------------------------------------------


def test_first_tokens_and_those_after_an_accepted_one_are_told_apart():
    learned = taught(*[chain(4, 0), chain(4, 4)] * 100)
    assert learned.first_rate == pytest.approx(0.5, abs=0.05)
    assert learned.later_rate > 0.95


@pytest.mark.parametrize("exact", [True, False])
def test_a_guess_is_acceptance_only_where_drafts_are_matched_exactly(exact):
    learned = taught(*[plain(guessed=False)] * 60, exact=exact)
    assert learned.guess_rate < 0.05
    assert (learned.first_rate < 0.05) is exact


def test_levels_of_a_tree_hit_more_often_than_its_trunk_goes_on():
    beside = taught(*[tree(4, 1, whole=True)] * 60)
    assert beside.first_rate > 0.95
    assert beside.later_rate < 0.1
    trunk = taught(*[tree(4, 4, whole=True)] * 60)
    assert (trunk.first_rate > 0.95, trunk.later_rate > 0.95) == (True, True)
    missed = taught(*[tree(4, 2, whole=False)] * 200)
    assert missed.first_rate == pytest.approx(2 / 3, abs=0.02)
    assert missed.later_rate == pytest.approx(2 / 3, abs=0.02)


def test_new_rounds_count_for_more_than_old_ones():
    share = Share()
    for hit in [1] * 100 + [0] * 30:
        share = share.add(hit, 1)
    assert share.rate(0.5) < 0.3


# --- plans ---------------------------------------------------------------------------


def test_the_expected_tokens_are_those_of_the_literature():
    learned = Learned(first=Share(80.0, 100.0), later=Share(80.0, 100.0), draft_ms=1.0)
    first, later = learned.first_rate, learned.later_rate
    brings = expected(learned, 4)
    assert brings.tokens[3] == pytest.approx(1 + first * (1 + later + later**2))
    assert brings.tokens[0] == 1.0


def test_by_rejection_the_last_draft_token_of_a_block_brings_only_a_chance_to_go_on():
    learned = taught(*[chain(4, 3)] * 9, exact=False)
    brings = expected(learned, 4)
    assert (brings.tokens[1], brings.warm[1]) == (1.0, learned.first_rate)
    assert brings.tokens[2] == 1.0 + learned.first_rate


def test_drafts_slower_than_rounds_are_not_waited_for_and_promise_nothing():
    slow = [plain(True, ms=10.0), chain(1, 1, draft_ms=30.0, round_ms=11.0)] * 9
    plan = make_plan(taught(*slow), 8, None, chained=False)
    assert not plan.waits(0)
    assert not plan.waits(0, warm=False)
    assert plan.rate == pytest.approx(1 / 10.0, rel=0.3)


def test_a_plan_comes_to_rest_and_foresees_what_a_simulation_brings():
    run = Session(Thompson(16), lambda place: 0.8).run(400)
    plan = run.policy.plan
    for _ in range(50):
        plan = plan.swept()
    assert plan.rate == pytest.approx(plan.swept().rate, rel=1e-3)
    assert plan.rate == pytest.approx(run.per_ms, rel=0.15)
    assert list(plan.warm.worths) == sorted(plan.warm.worths), "more ready tokens are worth more"


def test_nothing_is_waited_for_before_anything_is_known():
    assert Thompson(8).decide(view()) == Send(0)
    assert Thompson(8).decide(view(drafted=3)) == Send(3)
    known = observe(Thompson(8), [plain(), plain(True)])
    assert known.decide(view()) == Send(0)
    assert known.decide(view(drafted=5)) == Send(1), "a draft's cost is found out on one token"


def test_what_is_waited_for_and_does_not_come_is_given_up():
    policy = observe(Thompson(8), [plain(True), chain(1, 1), chain(3, 1)] * 9)
    wait = policy.decide(view())
    assert 10.01 < wait.until < 10.2
    assert policy.decide(view(now=wait.until)) == Send(0)
    assert policy.decide(view(now=wait.until, drafted=1)) == Send(1)


@pytest.mark.parametrize("drafting", [True, False])
def test_a_block_fits_before_the_length_limit_and_nobody_waits_in_vain(drafting):
    policy = observe(Thompson(8), [plain(True), chain(1, 1), chain(3, 3)] * 9)
    assert policy.decide(view(drafted=8, room=2, drafting=drafting)) == Send(2)
    assert policy.decide(view(room=0)) == Send(0)
    assert policy.decide(view(drafting=False)) == Send(0)


def test_a_probe_waits_for_one_token_even_where_that_does_not_pay():
    policy = observe(Thompson(8), [chain(1, 0)] * 20 + [plain(False)] * (FIRST_PROBE - 1))
    assert policy.decide(view(drafted=3)) == Send(0)
    policy = policy.observe(plain(False))
    assert policy.decide(view(drafted=3)) == Send(1)
    assert policy.decide(view()).until > 10.0
    assert policy.observe(plain()).plain_rounds == 0, "the probe is over"


# --- trees ---------------------------------------------------------------------------


def test_trees_are_as_deep_as_pays_and_no_deeper_than_asked_for():
    good = observe(Levels(6), [tree(6, 6, whole=True)] * 40)
    middling = observe(Levels(6), [tree(6, 1, whole=False), tree(4, 2, whole=False)] * 40)
    bad = observe(Levels(6), [tree(6, 0, whole=False)] * 40)
    assert (Levels(6).window, good.window, bad.window) == (6, 6, 1)
    assert 1 < middling.window < 6
    assert good.promise > middling.promise > bad.promise


def test_the_depth_of_trees_does_not_change_for_a_trifle():
    outcomes = [tree(4, 2, whole=False), tree(4, 4, whole=True), tree(4, 0, whole=False)] * 20
    policy, depths = Levels(4), []
    for outcome in outcomes:
        policy = policy.observe(outcome)
        depths.append(policy.window)
    assert sum(a != b for a, b in pairwise(depths[20:])) <= 4


def test_by_rejection_the_depth_of_trees_stays_for_the_session_and_serves_the_next():
    policy = observe(Levels(6, Learned(exact=False)), [tree(6, 0, whole=False)] * 40)
    assert policy.window == 6
    known = Experience().joined(Fallback(policy))
    assert known.seeded(Fallback(Levels(6, Learned(exact=False)))).window == 1


# --- experience ----------------------------------------------------------------------


def eager() -> Fallback:
    return Fallback(Thompson(16))


def test_a_session_starts_from_what_those_before_it_learned():
    before = Session(eager(), lambda place: 0.8).run(100)
    after = Experience().joined(before.policy).seeded(eager())
    assert after.inner.learned.first_rate == pytest.approx(0.8, abs=0.15)
    assert after.inner.learned.draft_ms == pytest.approx(11.0)
    assert after.plain.per_ms == pytest.approx(1 / 70.0)
    assert after.inner.decide(view()).until > 10.0, "it waits for drafts at once"
    run = Session(after, lambda place: 0.8).run(30)
    assert all(run.windows), "plain decoding need not be measured again"


def test_experience_has_limited_weight_however_long_it_was():
    known = Experience()
    for seed in range(20):
        known = known.joined(Session(eager(), lambda place: 0.9, seed=seed).run(50).policy)
    learned = known.seeded(eager()).inner.learned
    for share in (learned.first, learned.later, learned.guess):
        assert share.tries <= SEED_WEIGHT + 1e-9
    assert learned.costs.line.weight <= SEED_WEIGHT + 1e-9


def test_a_session_that_never_saw_a_round_teaches_nothing():
    known = Experience().joined(Session(eager(), lambda place: 0.8).run(50).policy)
    assert known.joined(eager()) == known


def test_policies_without_a_memory_take_and_give_no_experience():
    known = Experience().joined(Session(eager(), lambda place: 0.8).run(50).policy)
    assert (known.seeded(Fixed(4)), known.joined(Fixed(4))) == (Fixed(4), known)
    seeded = known.seeded(Fallback(Fixed(4)))
    assert (seeded.inner, seeded.plain.rounds > 0) == (Fixed(4), True)


def test_what_a_draft_takes_is_known_without_sending_one():
    assert taught(plain(False)._replace(tail_ms=11.0)).draft_ms == 11.0
