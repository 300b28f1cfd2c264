"""Rules beside one another, from trials made by hand."""

import pytest

from bench.comparison import Paired, compare
from bench.figures import accepted_per_round, block_efficiency
from bench.prompts import BenchPrompt
from bench.runner import Trial
from services.cluster.figures import Measured
from tests.console.events import STARTED, complete, stats


def answer(tokens: int, steps: int, *rounds) -> Measured:
    return Measured(STARTED, complete(tokens, steps), tuple(range(tokens)), (), rounds, 1.0)


def trial(name: str, repeat: int, question: int, measured: Measured, wall: float = 1.0) -> Trial:
    return Trial(name, repeat, question, (BenchPrompt(question, "qa", "?"),), (measured,), wall)


def test_block_efficiency_is_compared_within_each_repeat():
    trials = [
        trial("a", 0, 1, answer(8, 4)),
        trial("b", 0, 1, answer(8, 8)),
        trial("a", 1, 1, answer(9, 3)),
        trial("b", 1, 1, answer(8, 4)),
    ]
    ratio = compare(trials, "a", "b").block_efficiency
    assert ratio is not None
    assert (ratio.low, ratio.high) == (pytest.approx(1.5), pytest.approx(2.0))


def test_gains_are_taken_prompt_by_prompt_over_all_repeats():
    trials = [
        trial("a", 0, 1, answer(6, 2)),
        trial("a", 1, 1, answer(2, 2)),
        trial("b", 0, 1, answer(2, 2)),
        trial("a", 0, 2, answer(4, 2)),
        trial("b", 0, 2, answer(2, 2)),
    ]
    gain = compare(trials, "a", "b").block_efficiency_gain
    assert gain == Paired(pytest.approx(1.0), pytest.approx(0.0), 2)


def test_prompts_that_one_of_both_never_answered_do_not_count():
    compared = compare([trial("a", 0, 1, answer(4, 2)), trial("b", 0, 2, answer(4, 2))], "a", "b")
    assert compared.block_efficiency is None
    assert compared.block_efficiency_gain is None


def test_the_error_of_a_gain_falls_with_the_prompts():
    few, many = Paired.of([0.0, 1.0] * 2), Paired.of([0.0, 1.0] * 50)
    assert few is not None
    assert many is not None
    assert few.error > 4 * many.error


def test_one_prompt_tells_no_error():
    assert Paired.of([0.5]) is None


def test_rounds_without_a_draft_accept_nothing_and_are_left_out():
    trials = [trial("a", 0, 1, answer(7, 3, stats(4, 3), stats(4, 1), stats(0, 0)))]
    assert accepted_per_round(trials) == pytest.approx(2.0)
    assert block_efficiency(trials) == pytest.approx(7 / 3)


def test_a_baseline_that_accepted_nothing_gives_no_ratio():
    trials = [
        trial("a", 0, 1, answer(4, 2, stats(2, 2))),
        trial("b", 0, 1, answer(2, 2, stats(2, 0))),
    ]
    assert compare(trials, "a", "b").acceptance is None
