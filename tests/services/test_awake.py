"""A clock that stands still while its process does."""

import pytest

from services.runtime.awake import AwakeClock

EVERY = 0.25


@pytest.fixture
def clock():
    return AwakeClock(EVERY, 100.0)


def test_it_runs_with_the_loop(clock):
    for beat in range(1, 9):
        assert clock.beat(100.0 + beat * EVERY) == 0.0
    assert clock.at(102.1) == pytest.approx(2.1)
    assert clock.missed == 0.0


def test_a_standstill_counts_as_one_interval_before_its_late_beat_as_after_and_is_told(clock):
    clock.beat(100.25)
    assert clock.at(104.5) == pytest.approx(0.5)
    assert clock.beat(104.5) == pytest.approx(4.0)
    assert clock.at(104.5) == pytest.approx(0.5)
    assert clock.missed == pytest.approx(4.0)


@pytest.mark.parametrize("gap", [0.1, 0.25, 0.4, 0.5, 0.51, 0.9, 30.0])
def test_it_never_goes_back(clock, gap):
    now, seen = 100.0, [0.0]
    for _ in range(5):
        seen += [clock.at(now + part * gap) for part in (0.3, 0.6, 0.99)]
        now += gap
        clock.beat(now)
        seen.append(clock.at(now))
    assert seen == sorted(seen)


def test_a_loop_that_is_a_little_late_misses_nothing(clock):
    for beat in range(1, 11):
        clock.beat(100.0 + 0.45 * beat)
    assert clock.at(104.5) == pytest.approx(4.5)
