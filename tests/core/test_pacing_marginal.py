"""Trees that come best first: how many of their nodes are sent, and when the drafter rests."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.pacing import (
    Estimates,
    Experience,
    FinishedRound,
    Marginal,
    Send,
    View,
    Wait,
)
from orchestrator.core.pacing.marginal import (
    CROWDED_REST,
    FIRST_REST,
    PLAN_EVERY,
    TRIAL,
)
from orchestrator.core.pacing.steps import MOST_ROWS, Steps
from orchestrator.core.pacing.thompson import FIRST_PROBE, LONGEST_PROBE
from services.scheduling.tree_budget import believed, worth_most

STAIRS = {1: 36.3, 2: 39.7, 3: 41.0, 4: 42.6, 5: 44.6, 6: 46.7, 7: 53.0, 8: 60.7, 9: 63.4}


def view(reach: tuple[float, ...] = (), **changes) -> View:
    values = {"now": 10.0, "idle_since": 10.0, "drafted": len(reach), "drafting": True}
    return View(**{**values, "room": 100, "reach": reach, **changes})


def outcome(
    reach: tuple[float, ...] = (), taken: tuple[int, ...] = (), waited: float = 0.0, **changes
) -> FinishedRound:
    rows, ms = 1 + len(reach), STAIRS[1 + len(reach)]
    values = {"verify_ms": ms, "batch_rows": rows, "waited_ms": waited, "reach": reach}
    values |= {"taken": taken, **changes}
    return FinishedRound(len(reach), len(taken), len(taken) + 1, ms + 1.0, 0.3, **values)


def learned(rounds: int = 20, seed: int = 0) -> Marginal:
    """A policy that has seen every count of rows on a core with stairs."""
    policy, source = Marginal(12, 8), random.Random(seed)
    for _ in range(rounds):
        for count in range(9):
            reach = tuple(0.9 - 0.1 * node for node in range(count))
            taken = tuple(node for node, r in enumerate(reach) if source.random() < r)
            policy = policy.observe(outcome(reach, taken, waited=1.0))
    return policy


def count(policy: Marginal, *reach: float) -> int:
    decision = policy.decide(view(reach))
    assert isinstance(decision, Send)
    return decision.count


def test_the_tree_is_waited_for_but_not_for_long():
    decision = learned().decide(view())
    assert isinstance(decision, Wait)
    assert 10.0 < decision.until < 10.02
    assert learned().decide(view(now=decision.until)) == Send(0)
    assert learned().decide(view(drafting=False)) == Send(0)


def test_nodes_that_do_not_pay_are_cut():
    policy = learned()
    assert count(policy, 0.9, 0.8, 0.02, 0.01) == 2
    assert count(policy, 0.01, 0.01) == 0
    assert count(policy, *[0.9] * 8) >= 5


def test_a_stair_is_jumped_where_what_lies_behind_it_pays():
    policy = learned()
    # Six rows and no more where the seventh is dear, all where enough comes after it.
    assert count(policy, 0.9, 0.85, 0.8, 0.75, 0.7, 0.1, 0.1, 0.1) == 5
    assert count(policy, *[0.95] * 8) == 8


def test_no_more_than_fits_before_the_length_limit():
    assert learned().decide(view((0.9, 0.8), room=0)) == Send(0)


def test_a_drafter_that_promises_too_much_is_believed_less():
    policy = Marginal(12, 8, rests=False)
    for _ in range(60):
        policy = policy.observe(outcome((0.6, 0.5)))
    first, second = policy.learned.believed((0.6, 0.5))
    assert first < 0.15
    assert second <= first


@given(st.lists(st.floats(0, 1), max_size=12))
def test_what_is_believed_still_falls(chances: list[float]):
    reach = tuple(sorted(chances, reverse=True))
    found = [1.0, *learned(2).learned.believed(reach)]
    assert all(1.0 >= left >= right >= 0.0 for left, right in pairwise(found))


def test_drafts_that_bring_nothing_rest_and_are_tried_again_later_and_later():
    policy, awake, rests = Marginal(12, 8), 0, []
    for _ in range(600):
        if policy.window:
            policy = policy.observe(outcome((0.5, 0.4), waited=2.0))
            awake += 1
            rests += [policy.resting] if policy.resting else []
        else:
            assert policy.decide(view((0.9,))) == Send(0)
            policy = policy.observe(outcome())
    assert rests[:4] == [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST, 8 * FIRST_REST]
    assert awake <= 6 * TRIAL


@pytest.mark.parametrize("hits", [0.25, 0.5])
def test_drafts_that_pay_do_not_rest(hits: float):
    policy, source, rested = Marginal(12, 8), random.Random(3), 0
    for _ in range(2000):
        taken = (0,) if source.random() < hits else ()
        rested += not policy.window
        reach = (hits,) if policy.window else ()
        policy = policy.observe(outcome(reach, taken if reach else (), waited=1.0 if reach else 0))
    assert rested < 100


def crowded(queue: float) -> Marginal:
    """Among four sessions: who waits for a tree lies `queue` ms, until the step before is over."""
    policy = Marginal(12, 8)
    step = {"verify_ms": 70.0, "batch_size": 4, "batch_rows": 4}
    for number in range(40):
        late = {"waited": 2.0, "queue_ms": queue} if policy.window else {"queue_ms": 1.0}
        reach = (0.6,) if policy.window else ()
        taken = (0,) if policy.window and number % 3 == 0 else ()
        policy = policy.observe(outcome(reach, taken, **step, **late))
    return policy


def test_trees_that_make_a_session_late_for_the_step_of_others_are_not_waited_for():
    assert crowded(queue=60.0).resting
    assert crowded(queue=60.0).learned.late_ms > 20.0
    assert crowded(queue=1.0).learned.late_ms < 2.0


def test_a_session_that_would_be_late_as_others_are_begins_with_a_rest():
    late = learned().learned._replace(late_ms=60.0)
    assert Marginal(12, 8).informed(late).window == 0
    fresh = Experience().joined(crowded(queue=1.0)).seeded(Marginal(12, 8))
    assert isinstance(fresh, Marginal)
    assert fresh.window == 8


def full(rises: float) -> Marginal:
    """Among 24 sessions, each with one row or two, where a row more takes `rises` ms."""
    policy = Marginal(12, 8)
    for number in range(24):
        rows = 24 + 24 * (number % 2)
        step = {"verify_ms": 40.0 + rises * rows, "batch_size": 24, "batch_rows": rows}
        taken = (0,) if number % 2 else ()
        policy = policy.observe(outcome((0.6,), taken, waited=1.0, **step))
    return policy


def test_in_a_step_so_full_that_a_good_tree_would_not_pay_none_is_waited_for():
    rests = full(rises=1.1)
    assert rests.resting
    assert rests.rounds - (CROWDED_REST - rests.resting) <= TRIAL
    # Where rows cost nothing a crowd drafts as a single session does.
    assert not full(rises=0.0).resting


STEP = {"verify_ms": 70.0, "batch_rows": 24}


def test_a_crowd_that_does_not_know_what_rows_take_waits_for_others_to_find_out_and_then_tries():
    assert not Marginal(12, 8).observe(outcome(**STEP, batch_size=2)).resting
    policy = Marginal(12, 8).observe(outcome(**STEP, batch_size=24))
    assert policy.resting
    rounds = 1
    while policy.resting:
        policy, rounds = policy.observe(outcome(**STEP, batch_size=24)), rounds + 1
    assert FIRST_REST < rounds <= FIRST_REST + PLAN_EVERY
    assert policy.observe(outcome(**STEP, batch_size=24)).window


def test_the_rest_of_a_crowd_ends_when_the_others_have_gone():
    rests = full(rises=1.1)
    for _ in range(3 * PLAN_EVERY):
        alone = {"verify_ms": 41.0, "batch_size": 1, "batch_rows": 1}
        rests = rests.observe(outcome(**alone))
    assert not rests.resting
    # Who comes after a crowd does not rest for it.
    assert not Marginal(12, 8).informed(full(rises=1.1).learned).observe(outcome(**alone)).resting


def test_among_many_sessions_a_row_is_reckoned_dearer_than_it_is():
    alone, crowd = learned(), learned()
    costs = crowd.learned.costs._replace(sessions=24.0)
    crowd = Marginal(12, 8).informed(crowd.learned._replace(costs=costs))
    assert alone.learned.dearness == 1.0
    assert 1.9 < crowd.learned.dearness < 2.0
    assert count(crowd, 0.5) == 0
    assert count(alone, 0.5) == 1


def test_a_new_session_starts_with_what_others_learned():
    known = Experience().joined(learned())
    fresh = known.seeded(Marginal(12, 8))
    assert isinstance(fresh, Marginal)
    assert count(fresh, 0.9, 0.8, 0.02, 0.01) == 2
    assert fresh.learned.steps.known
    assert Experience().seeded(Marginal(12, 8)) == Marginal(12, 8)
    assert isinstance(known.joined(fresh).estimates, Estimates)


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 200)), max_size=60))
def test_more_rows_never_take_less_time(steps: list[tuple[int, float]]):
    known = Steps()
    for rows, ms in steps:
        known = known.add(rows, ms)
    curve = known.curve()
    assert len(curve) == MOST_ROWS
    assert all(right >= left - 1e-9 for left, right in pairwise(curve))


def test_the_stairs_of_a_verifier_are_found():
    curve = learned().learned.steps.curve()
    for rows, ms in STAIRS.items():
        assert curve[rows - 1] == pytest.approx(ms, rel=0.05)


def test_one_stall_is_no_stair():
    known = Steps()
    for _ in range(10):
        known = known.add(2, 40.0)
    assert known.add(2, 4000.0).curve()[1] < 60.0


def slow_at_first(policy: Marginal, seen: set[int], rounds: int = 400) -> tuple[Marginal, int]:
    """A verifier that loads code for each width: its first step takes 600 ms, others 30.

    The policy after so many rounds, and how many of the last hundred had a draft.
    """
    source, drafted = random.Random(1), []
    for _ in range(rounds):
        nodes = 0
        if policy.window:
            nodes = count(policy, 0.6, 0.4, 0.25, 0.1)
        rows = 1 + nodes
        ms = 30.0 if rows in seen else 600.0
        seen.add(rows)
        reach = (0.6, 0.4, 0.25, 0.1)[:nodes]
        taken = tuple(node for node in range(nodes) if source.random() < reach[node])
        given = {"verify_ms": ms, "batch_rows": rows, "chained": True}
        policy = policy.observe(outcome(reach, taken, **given))
        drafted.append(nodes > 0)
    return policy, sum(drafted[-100:])


def test_a_verifier_whose_first_steps_are_slow_is_drafted_for_afterwards():
    warm = Marginal(12, 8)
    for _ in range(8):
        warm = warm.observe(outcome(verify_ms=30.0, batch_rows=1))
    for begun in (Marginal(12, 8), warm):
        after, drafted = slow_at_first(begun, {1} if begun.rounds else set())
        assert drafted > 90
        fresh = Experience().joined(after).seeded(Marginal(12, 8))
        assert isinstance(fresh, Marginal)
        assert count(fresh, 0.6, 0.4, 0.25) == 3


def test_where_no_node_pays_for_long_one_is_sent_as_a_probe_and_seldom_if_it_does_not_pay():
    policy, probes = Marginal(12, 8), []
    for number in range(1200):
        nodes = count(policy, 0.6, 0.5) if policy.window else 0
        given = policy.allowance(8)
        if given is not None:
            assert worth_most(believed((0.6, 0.5), given.factors), given.prices) == nodes
        probes += [number] if nodes else []
        # A row takes as long as three plain steps.
        ms = {"verify_ms": 30.0 + 90.0 * nodes, "batch_rows": 1 + nodes, "chained": True}
        policy = policy.observe(outcome((0.6, 0.5)[:nodes], **ms))
    first = [number for number in probes if number < FIRST_PROBE]
    gaps = [later - earlier for earlier, later in pairwise(probes[len(first) - 1 :])]
    assert gaps[0] == FIRST_PROBE + 1
    assert all(b >= 1.5 * a or a > LONGEST_PROBE for a, b in pairwise(gaps))
    assert max(gaps) <= LONGEST_PROBE + PLAN_EVERY


def test_a_round_that_was_ahead_pays_for_its_rows_and_for_what_it_waited_at_the_verifier():
    policy = learned()
    apart = policy.observe(outcome((0.9,), (0,), waited=2.0)).gain.extra
    ahead = policy.observe(outcome((0.9,), (0,), chained=True)).gain.extra
    queued = policy.observe(outcome((0.9,), (0,), chained=True, queue_ms=6.0)).gain.extra
    rows = policy.learned.dearness * (policy.times[1] - policy.times[0]) / policy._plain_ms
    assert ahead == pytest.approx(0.97 * policy.gain.extra + rows, rel=0.05)
    assert apart - ahead > 2.0 / policy._plain_ms
    assert queued - ahead == pytest.approx(6.0 / policy._plain_ms, rel=0.05)


def test_where_the_trees_of_all_make_a_step_late_sessions_rest():
    """Rows alone would pay: in one step of twenty sessions every tree delays all of them."""

    def rounds_awake(queue_ms: float) -> int:
        policy, awake = Marginal(12, 8), 0
        for number in range(80):
            nodes = 1 if policy.window and number % 2 else 0
            reach, taken = (0.6,) * nodes, (0,) * nodes
            given = {"batch_size": 20, "batch_rows": 20 * (1 + nodes), "chained": True}
            given |= {"verify_ms": 80.0 + 14.0 * nodes, "queue_ms": queue_ms}
            awake += policy.window > 0
            policy = policy.observe(outcome(reach, taken, **given))
        return awake

    assert rounds_awake(0.0) > 50
    assert rounds_awake(30.0) < 30


def test_what_may_be_taken_is_what_would_have_been_sent():
    policy = learned()
    given = policy.allowance(8)
    assert given is not None
    assert len(given.prices) == 8
    for chances in ((0.9, 0.8, 0.02), (0.01,), (0.95,) * 8, (0.9, 0.85, 0.8, 0.75, 0.7, 0.1, 0.1)):
        assert worth_most(believed(chances, given.factors), given.prices) == count(policy, *chances)


def test_nothing_may_be_taken_in_a_rest_or_before_it_is_known_what_a_round_takes():
    assert Marginal(12, 8).allowance(8) is None
    assert replace(learned(), resting=3).allowance(8) is None
    assert learned().allowance(0) is None
