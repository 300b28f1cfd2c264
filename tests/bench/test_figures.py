"""Figures of a bench, from trials made by hand."""

from __future__ import annotations

import pytest

from bench.figures import Percentiles, Spread, acceptance_per_position, figures_of, overhead_ms
from bench.prompts import BenchPrompt
from bench.runner import Trial
from services.console.figures import Measured
from tests.console.events import STARTED, complete, stats

PROMPT = BenchPrompt(1, "qa", "?")


def trial(name, repeat, wall, tokens=4, rounds=(), steps=4, ids=None) -> Trial:
    measured = Measured(
        started=STARTED,
        complete=complete(tokens, steps),
        token_ids=tuple(ids or range(tokens)),
        arrivals=((wall / 2, 1), (wall, tokens - 1)),
        rounds=tuple(rounds),
        total_s=wall,
    )
    return Trial(name, repeat, 0, (PROMPT,), (measured,), wall)


def test_a_speed_up_is_taken_within_each_repeat():
    trials = [
        trial("plain", 0, 4.0),
        trial("eager", 0, 2.0),
        trial("plain", 1, 9.0),
        trial("eager", 1, 3.0),
        trial("plain", 2, 1.0),
        trial("eager", 2, 1.0),
    ]
    assert figures_of(trials, "eager").speed_up == Spread(2.0, 1.0, 3.0, 3)


def test_plain_decoding_has_no_speed_up_over_itself():
    assert figures_of([trial("plain", 0, 4.0)], "plain").speed_up is None


def test_a_repeat_that_was_stopped_counts_only_what_both_finished():
    trials = [trial("plain", 0, 4.0), trial("eager", 0, 2.0), trial("eager", 1, 2.0)]
    spread = figures_of(trials, "eager").speed_up
    assert spread is not None
    assert spread.repeats == 1


def test_texts_of_unequal_length_are_compared_by_time_per_token():
    trials = [trial("plain", 0, 4.0, tokens=4), trial("eager", 0, 4.0, tokens=8)]
    spread = figures_of(trials, "eager").speed_up
    assert spread is not None
    assert spread.median == pytest.approx(2.0)


def test_rates_are_total_tokens_over_total_time():
    trials = [trial("plain", 0, 1.0, tokens=2), trial("plain", 0, 3.0, tokens=6)]
    rate = figures_of(trials, "plain").tokens_per_second
    assert rate is not None
    assert rate.median == pytest.approx(2.0)


def test_equal_texts_are_counted():
    trials = [trial("plain", 0, 1.0), trial("eager", 0, 1.0), trial("eager", 1, 1.0, ids=[9] * 4)]
    trials.append(trial("plain", 1, 1.0))
    assert figures_of(trials, "eager").same_text_as_plain == (1, 2)


def test_equal_texts_are_not_counted_where_they_are_not_promised():
    trials = [trial("plain", 0, 1.0), trial("eager", 0, 1.0)]
    assert figures_of(trials, "eager", exact=False).same_text_as_plain is None


def test_the_rules_are_those_that_judged_a_draft():
    trials = [trial("eager", 0, 1.0, rounds=[stats(2, 1), stats(0, 0)])]
    assert figures_of(trials, "eager").rules == ("greedy",)
    trials = [trial("eager", 0, 1.0, rounds=[stats(0, 0)])]
    assert figures_of(trials, "eager").rules == ()


def test_acceptance_of_a_place_counts_only_drafts_that_reached_it():
    rounds = [stats(3, 3), stats(3, 1), stats(3, 0), stats(1, 1)]
    assert acceptance_per_position(rounds) == pytest.approx((3 / 4, 1 / 2, 1.0))


def test_waste_and_acceptance_add_up():
    trials = [trial("eager", 0, 1.0, rounds=[stats(4, 3), stats(4, 1)])]
    figures = figures_of(trials, "eager")
    assert figures.acceptance_rate == pytest.approx(0.5)
    assert figures.wasted_share == pytest.approx(0.5)
    assert figures.drafted_per_token == pytest.approx(2.0)


def test_overhead_is_what_the_verifier_did_not_take():
    assert overhead_ms(stats(1, 1, round_ms=12.0, verify_ms=9.0, queue_ms=1.0)) == 2.0


def test_percentiles_lie_between_the_neighbours():
    times = Percentiles.of([one / 1000 for one in range(101)])
    assert times == Percentiles(50.0, pytest.approx(95.0), pytest.approx(99.0))


def test_nothing_measured_gives_no_figure():
    assert Spread.of([]) is None
    assert Percentiles.of([]) is None
    assert figures_of([], "eager").block_efficiency == 0.0
