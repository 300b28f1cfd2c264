"""How long a worker should take to open a session: its pace, and what is queued there."""

from __future__ import annotations

import pytest

from orchestrator.workers.openings import FIRST_PACE, Openings


@pytest.fixture
def openings() -> Openings:
    return Openings()


def test_before_anything_was_measured_a_slow_pace_is_taken(openings: Openings):
    assert openings.expected(1000, 0) == pytest.approx(1000 * FIRST_PACE)


def test_what_the_worker_tells_of_its_queue_comes_before_the_text(openings: Openings):
    assert openings.expected(1000, 3000) == pytest.approx(4000 * FIRST_PACE)


def test_what_was_sent_since_it_told_does_too(openings: Openings):
    for session in ("a", "b", "c"):
        openings.send(session, 1000, 0.0)
    assert openings.expected(1000, 0) == pytest.approx(4000 * FIRST_PACE)
    openings.forget("b")
    openings.opened("c", 0, 1.0)
    openings.clear()
    assert openings.expected(1000, 0) == pytest.approx(1000 * openings.expected(1, 0))


def test_the_pace_is_measured_with_the_waits_for_others(openings: Openings):
    openings.send("a", 1000, 0.0)
    openings.send("b", 1000, 0.0)
    openings.opened("a", 0, 2.0)
    openings.opened("b", 0, 4.0)
    assert openings.expected(1000, 0) == pytest.approx(2.0)


def test_what_was_in_its_cache_took_no_time(openings: Openings):
    openings.send("a", 4000, 0.0)
    openings.opened("a", 3000, 5.0)
    assert openings.expected(1000, 0) == pytest.approx(5.0)


def test_a_few_tokens_say_nothing_of_the_pace(openings: Openings):
    openings.send("a", 3, 0.0)
    openings.opened("a", 0, 0.1)
    assert openings.expected(1000, 0) < 2.0


def test_a_slow_opening_is_forgotten_slowly(openings: Openings):
    for number, seconds in enumerate([10.0, 1.0, 1.0]):
        openings.send(str(number), 1000, 0.0)
        openings.opened(str(number), 0, seconds)
    assert openings.expected(1000, 0) == pytest.approx(8.1)


def test_a_session_that_nobody_opened_is_not_measured(openings: Openings):
    openings.opened("unknown", 0, 100.0)
    assert openings.expected(1, 0) == FIRST_PACE
