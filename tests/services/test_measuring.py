"""What a verifier measures of its steps before it serves."""

import logging

import pytest

from services.contract.types import StepTime
from services.verifier import measuring
from services.verifier.measuring import MOST_S, ROWS, SWEEPS, measured
from tests.fake_engine import FakeEngine
from tests.integration.cluster import engine


class Timed(FakeEngine):
    """Its forwards take `plain` seconds and `row` for each row; the clock is the test's.

    Every third one stalls for `stall` seconds more; `plain` shrinks with each by `falls`.
    """

    def __init__(self, plain: float, row: float, stall: float = 0.0, falls: float = 1.0):
        super().__init__()
        self._falls = falls
        self.now, self.widths = 0.0, []
        self._alone, self._each, self._stall = plain, row, stall

    def forward(self, segments):
        [segment] = segments
        rows = len(segment.token_ids)
        self._alone *= self._falls
        self.now += self._alone + self._each * rows
        if len(self.widths) % 3 == 2:
            self.now += self._stall
        self.widths.append(rows)
        return super().forward(segments)


def test_the_time_of_each_count_of_rows_is_found():
    made = Timed(0.040, 0.003)
    times = measured(made, lambda: made.now)
    assert [one.rows for one in times] == sorted(ROWS)
    assert dict(times) == {rows: pytest.approx(40.0 + 3.0 * rows) for rows in ROWS}
    assert made.kv_tokens_used == 0


def test_a_stall_is_no_time_of_a_step():
    made = Timed(0.002, 0.001, stall=0.02)
    assert dict(measured(made, lambda: made.now)) == {
        rows: pytest.approx(2.0 + rows) for rows in ROWS
    }


def test_where_nothing_gets_faster_any_more_it_ends_and_at_last_all_the_same():
    made = Timed(1e-5, 0.0)
    measured(made, lambda: made.now)
    assert len(made.widths) == 1 + 2 * len(ROWS)
    warming = Timed(1e-5, 0.0, falls=0.99)
    measured(warming, lambda: warming.now)
    assert len(warming.widths) == 1 + SWEEPS * len(ROWS)


def test_a_model_whose_steps_take_seconds_is_measured_with_one_row_and_one_other_count():
    made = Timed(3.0, 0.1)
    times = measured(made, lambda: made.now)
    assert times == (StepTime(1, pytest.approx(3100.0)), StepTime(8, pytest.approx(3800.0)))
    # The prompt's, then theirs.
    assert len(made.widths) == 3


def test_no_step_begins_when_the_time_is_over():
    made = Timed(0.1, 0.0)
    measured(made, lambda: made.now)
    assert made.now <= 0.1 + MOST_S + 0.1


def test_an_engine_of_chains_alone_is_measured_with_chains():
    made = FakeEngine()
    made.capabilities = frozenset()
    assert [one.rows for one in measured(made)] == sorted(ROWS)


def test_a_model_is_measured_and_serves_on():
    made = engine()
    assert [one.rows for one in measured(made)] == sorted(ROWS)
    assert made.kv_tokens_used == made.kv_tokens_spare == 0


@pytest.mark.parametrize("options", [{"capacity": 8}, {"context": 8}])
def test_what_has_no_room_for_it_is_not_measured(options, caplog):
    with caplog.at_level(logging.INFO, measuring.__name__):
        assert measured(FakeEngine(**options)) == ()
    assert caplog.messages
