"""What verifiers measured before they served, and what first drafts do with it."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.pacing import Chained, Experience, Fallback, Levels, Marginal, Thompson
from orchestrator.core.pacing.costs import RoundCosts
from orchestrator.core.pacing.steps import MOST_ROWS, NOT_TOLD, Steps, told_by
from services.contract.types import StepTime
from tests.core.test_pacing_marginal import count, outcome

MEASURED = (1, 2, 4, 8, 16)


class Cpu(NamedTuple):
    """Milliseconds of one row, and of each row more."""

    plain: float
    row: float

    def ms(self, rows: int) -> float:
        return self.plain + self.row * (rows - 1)

    @property
    def told(self):
        return told_by(tuple(StepTime(rows, self.ms(rows)) for rows in MEASURED))


FLAT, STEEP = Cpu(40.0, 0.2), Cpu(40.0, 16.0)


def first(cpu: Cpu) -> Marginal:
    policy = Experience().seeded(Marginal(12, 8), cpu.told)
    assert isinstance(policy, Marginal)
    return policy


def test_the_first_tree_is_as_large_as_pays_on_this_cpu():
    chances = (0.9, 0.5, 0.35, 0.3, 0.15, 0.1, 0.03)
    assert count(first(FLAT), *chances) == 7
    assert count(first(STEEP), *chances) == 2
    assert count(first(STEEP), 0.3, 0.2) == 0
    # Not told, it sends what is likely.
    assert count(Marginal(12, 8), *chances) == 4


def test_the_first_block_that_waits_at_the_verifier_may_take_as_much():
    given = first(STEEP).allowance(8)
    assert given is not None
    assert given.prices == pytest.approx([0.4 * n for n in range(1, 9)])


def test_what_is_seen_corrects_what_was_told():
    policy = first(FLAT)
    for _ in range(12):
        policy = policy.observe(outcome((0.5,), verify_ms=70.0, batch_rows=2))
        policy = policy.observe(outcome(verify_ms=40.0, batch_rows=1))
    assert count(policy, 0.5) == 0
    assert policy.learned.steps.curve()[1] == pytest.approx(70.0, rel=0.15)


def test_a_busier_machine_stretches_the_whole_curve():
    steps = Steps().informed(STEEP.told)
    for _ in range(20):
        steps = steps.add(1, 1.6 * STEEP.ms(1))
    curve = steps.curve()
    for rows in (1, 2, 4, 8):
        assert curve[rows - 1] == pytest.approx(1.6 * STEEP.ms(rows), rel=0.2)


@given(
    st.dictionaries(st.integers(1, 1 << 16), st.floats(1e-3, 1e9), max_size=64),
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 200)), max_size=20),
)
def test_whatever_was_told_more_rows_never_take_less_time(told, steps):
    known = Steps().informed(told_by(tuple(StepTime(*one) for one in sorted(told.items()))))
    for rows, ms in steps:
        known = known.add(rows, ms)
    curve = known.curve()
    assert len(curve) == MOST_ROWS
    assert all(right >= left * (1 - 1e-9) for left, right in pairwise(curve))


def test_between_and_beyond_what_was_measured_the_curve_goes_on():
    curve = told_by((StepTime(2, 45.0), StepTime(4, 55.0), StepTime(8, 75.0))).curve
    assert [curve[rows - 1] for rows in (1, 2, 3, 6, 8, 16)] == pytest.approx(
        [40.0, 45.0, 50.0, 65.0, 75.0, 115.0]
    )


def test_what_took_longer_than_a_wider_step_was_held_up():
    noisy = (StepTime(1, 52.0), StepTime(2, 90.0), StepTime(4, 61.0), StepTime(8, 60.0))
    curve = told_by(noisy).curve
    assert [curve[rows - 1] for rows in (1, 2, 4, 8)] == [52.0, 60.0, 60.0, 60.0]


def test_of_one_time_or_none_nothing_follows():
    assert told_by(()) == told_by((StepTime(1, 40.0),)) == NOT_TOLD
    assert Experience().seeded(Marginal(12, 8), NOT_TOLD) == Marginal(12, 8)


def test_blocks_of_chains_know_what_a_row_takes_after_their_first_round():
    for cpu in (FLAT, STEEP):
        costs = RoundCosts().informed(cpu.told)
        assert not costs.known
        costs = costs.add(outcome(verify_ms=60.0, batch_rows=1))
        assert costs.step_ms(4) / costs.step_ms(0) == pytest.approx(cpu.ms(5) / cpu.ms(1), rel=0.1)


@pytest.mark.parametrize("policy", [Thompson(8), Levels(4)])
def test_every_policy_that_learns_what_rounds_take_is_told(policy):
    told = Experience().seeded(Chained(Fallback(policy)), STEEP.told)
    assert told.costs.line == told.inner.inner.learned.costs.line == STEEP.told.line


def test_later_sessions_are_told_too_and_keep_what_others_saw():
    policy = first(FLAT)
    for _ in range(10):
        policy = policy.observe(outcome(verify_ms=50.0, batch_rows=1))
    fresh = Experience().joined(policy).seeded(Marginal(12, 8), STEEP.told)
    assert isinstance(fresh, Marginal)
    curve = fresh.learned.steps.curve()
    assert curve[0] == pytest.approx(50.0, rel=0.1)
    assert curve[1] / curve[0] == pytest.approx(STEEP.ms(2) / STEEP.ms(1), rel=0.15)
