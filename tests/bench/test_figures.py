"""Figures of a bench, from trials made by hand."""

from dataclasses import replace

import pytest

from bench.figures import (
    Percentiles,
    RoundSplit,
    Spread,
    acceptance_per_position,
    by_task,
    cpu_per_round,
    decode_rate,
    figures_of,
    first_token_s,
)
from bench.prompts import BenchPrompt
from bench.runner import Trial
from services.cluster.figures import Measured
from tests.console.events import STARTED, complete, stats

PROMPT = BenchPrompt(1, "qa", "?")


def trial(name, repeat, wall, tokens=4, rounds=(), steps=4, ids=None) -> Trial:
    drafted = sum(own.draft_tokens for own in rounds), sum(own.accepted_tokens for own in rounds)
    measured = Measured(
        started=STARTED,
        complete=complete(tokens, steps, *drafted),
        token_ids=tuple(ids or range(tokens)),
        arrivals=((wall / 2, 1), (wall, tokens - 1)),
        rounds=tuple(rounds),
        total_s=wall,
    )
    return Trial(name, repeat, 0, (PROMPT,), (measured,), wall)


def test_a_speed_up_is_taken_within_each_repeat():
    trials = [
        trial("plain", 0, 4.0), trial("eager", 0, 2.0), trial("plain", 1, 9.0),
        trial("eager", 1, 3.0), trial("plain", 2, 1.0), trial("eager", 2, 1.0),
    ]  # fmt: skip
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


def timed(name, repeat, first, total, tokens=11) -> Trial:
    """An answer with its first token after `first` seconds and the others until `total`."""
    made = trial(name, repeat, total, tokens=tokens)
    [result] = made.results
    result = replace(result, arrivals=((first, 1), (total, tokens - 1)))
    return replace(made, results=(result,))


def test_decoding_the_first_token_and_the_whole_are_three_figures():
    # Half the time to the first token, and slower after it: the whole hides what drafts did.
    trials = [timed("plain", 0, 4.0, 5.0), timed("eager", 0, 2.0, 4.0)]
    figures = figures_of(trials, "eager")
    assert (decode_rate([trials[0]]), decode_rate([trials[1]])) == (10.0, 5.0)
    assert first_token_s([trials[1]]) == 2.0
    assert figures.decoding == Spread(5.0, 5.0, 5.0, 1)
    assert figures.decoding_ratio == Spread(0.5, 0.5, 0.5, 1)
    assert figures.first_token_ratio == Spread(0.5, 0.5, 0.5, 1)
    assert figures.speed_up == Spread(1.25, 1.25, 1.25, 1)


def test_an_answer_of_one_chunk_has_no_decode_speed_to_be_held_against():
    trials = [timed("plain", 0, 4.0, 4.0, tokens=1), timed("eager", 0, 2.0, 4.0)]
    assert figures_of(trials, "eager").decoding_ratio is None


def test_what_came_from_texts_before_is_a_figure_of_its_own():
    made = trial("eager", 0, 1.0)
    [result] = made.results
    usage = replace(result.complete.usage, cached_tokens=2)
    result = replace(result, complete=replace(result.complete, usage=usage))
    figures = figures_of([replace(made, results=(result,), recalled=7)], "eager", dtype="float32")
    assert (figures.cached_share, figures.recalled_tokens) == (pytest.approx(2 / 5), 7)
    assert figures.dtype == "float32"
    assert figures_of([made], "eager").recalled_tokens is None


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
    figures = figures_of([trial("eager", 0, 1.0, rounds=[stats(4, 3), stats(4, 1)])], "eager")
    assert figures.acceptance_rate == pytest.approx(0.5)
    assert figures.wasted_share == pytest.approx(0.5)
    assert figures.drafted_per_token == pytest.approx(2.0)


def test_percentiles_lie_between_the_neighbours():
    times = Percentiles.of([one / 1000 for one in range(101)])
    assert times == Percentiles(50.0, pytest.approx(95.0), pytest.approx(99.0))


def test_nothing_measured_gives_no_figure():
    assert Spread.of([]) is None
    assert Percentiles.of([]) is None
    assert figures_of([], "eager").block_efficiency == 0.0


def of_task(task, name, repeat, group, wall) -> Trial:
    return replace(trial(name, repeat, wall), group=group, prompts=(BenchPrompt(group, task, "?"),))


def test_each_task_has_its_own_speed_up():
    trials = [
        of_task("math", "plain", 0, 1, 4.0),
        of_task("math", "eager", 0, 1, 1.0),
        of_task("rag", "plain", 0, 2, 3.0),
        of_task("rag", "eager", 0, 2, 6.0),
        of_task("rag", "plain", 1, 2, 3.0),
        of_task("rag", "eager", 1, 2, 3.0),
    ]
    expected = {"math": Spread(4.0, 4.0, 4.0, 1), "rag": Spread(0.75, 0.5, 1.0, 2)}
    assert by_task(trials, "eager", "plain") == expected


def test_groups_of_several_prompts_belong_to_no_task():
    mixed = replace(trial("eager", 0, 1.0), prompts=(PROMPT, PROMPT))
    assert by_task([mixed, replace(mixed, configuration="plain")], "eager", "plain") == {}


def test_a_round_splits_into_its_parts_and_peers_without_times_have_none():
    timed = stats(2, 1, draft_ms=4.0, verify_ms=9.0, queue_ms=1.0, round_ms=12.0)
    other = stats(2, 1, draft_ms=2.0, verify_ms=7.0, queue_ms=1.0, round_ms=12.0)
    unknown = stats(2, 1, verify_ms=0.0, queue_ms=0.0, round_ms=0.0)
    split = RoundSplit.of([timed, other, unknown])
    assert split == RoundSplit(draft=3.0, verify=8.0, queue=1.0)
    assert RoundSplit.of([unknown]) is None


def test_the_orchestrator_s_time_is_shared_by_the_rounds_of_each_repeat():
    trials = [
        replace(trial("eager", 0, 1.0, steps=5), cpu_s={"orchestrator": 0.002}),
        replace(trial("eager", 0, 1.0, steps=5), cpu_s={"orchestrator": 0.004}),
        replace(trial("eager", 1, 1.0, steps=5), cpu_s={"orchestrator": 0.005}),
        trial("eager", 2, 1.0, steps=5),
    ]
    assert cpu_per_round(trials) == pytest.approx([0.6, 1.0])


def test_cpu_time_is_shared_by_the_tokens_of_each_repeat():
    trials = [
        replace(trial("eager", repeat, 1.0), cpu_s={"store": 0.004 * (repeat + 1), "client": 0.02})
        for repeat in (0, 1)
    ]
    figures = figures_of(trials, "eager")
    assert figures.cpu_ms == {"store": Spread(1.5, 1.0, 2.0, 2), "client": Spread(5.0, 5.0, 5.0, 2)}
    assert figures.gap == Percentiles(500.0, 500.0, 500.0)


def test_forwards_that_nobody_counted_give_no_efficiency():
    unknown = trial("vllm", 0, 1.0)
    [result] = unknown.results
    speculation = replace(result.complete.speculation, num_target_steps=0)
    complete = replace(result.complete, speculation=speculation)
    unknown = replace(unknown, results=(replace(result, complete=complete),))
    figures = figures_of([unknown], "vllm")
    assert (figures.block_efficiency, figures.target_calls_per_token) == (0.0, 0.0)
