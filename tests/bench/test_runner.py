"""The order in which a bench runs, what it keeps, and the report of a run that was stopped."""

import asyncio
import io
import json
import os
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from bench import main, runner
from bench.cpu import cpu_seconds
from bench.output import publish
from bench.prompts import BenchPrompt
from bench.report import print_report, summary_of, trial_content
from bench.runner import Configuration, Schedule, Trial, closed_loop, rotated, run_schedule
from bench.sections import Section, sections_of
from services.cluster.fresh import NotFresh
from services.contract.errors import StartError
from tests.bench.test_figures import trial

PROMPTS = [BenchPrompt(number, "qa", f"question {number}") for number in range(9)]


def silent(_: object) -> None:
    """Nobody listens."""


async def same_answer(prompt: BenchPrompt, options: Any) -> Any:
    return trial("any", 0, 1.0).results[0]


def answered_by(*names: str) -> list[Configuration]:
    return [Configuration(name, answer=same_answer) for name in names]


def run(schedule: Schedule, configurations: list[Configuration], done=()) -> list[Trial]:
    trials: list[Trial] = []
    asyncio.run(run_schedule(configurations, schedule, trials.append, silent, done))
    return trials


def test_every_configuration_comes_first_in_its_turn():
    configurations = answered_by("plain", "fixed", "eager")
    firsts = [rotated(configurations, turn)[0].name for turn in range(3)]
    assert firsts == ["plain", "fixed", "eager"]
    assert {one.name for one in rotated(configurations, 1)} == {"plain", "fixed", "eager"}


def test_one_at_a_time_every_prompt_is_a_trial_of_its_own():
    assert Schedule(PROMPTS).groups(1) == [(prompt,) for prompt in PROMPTS]


@pytest.mark.parametrize(("count", "level"), [(9, 2), (39, 4), (39, 16), (240, 16), (5, 5)])
def test_groups_hold_some_waves_of_prompts_and_none_is_lost(count, level):
    prompts = [BenchPrompt(number, "qa", "?") for number in range(count)]
    groups = Schedule(prompts).groups(level)
    assert [prompt for group in groups for prompt in group] == prompts
    sizes = {len(group) for group in groups}
    assert min(sizes) >= min(count, level * runner.WAVES)
    assert max(sizes) - min(sizes) <= 1


def test_in_a_closed_loop_a_new_prompt_starts_when_one_ends():
    at_work, most, order = 0, 0, []

    async def answer(prompt: BenchPrompt, _: Any) -> Any:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        if prompt.question_id == 0:
            await gate.wait()
        order.append(prompt.question_id)
        if prompt.question_id == 8:
            gate.set()
        at_work -= 1
        return prompt.question_id

    async def work() -> Any:
        return await closed_loop(PROMPTS, 2, {}, answer)

    gate = asyncio.Event()
    # The slow first prompt holds one place; all others pass through the second.
    assert asyncio.run(work()) == tuple(range(9))
    assert order == [*range(1, 9), 0]
    assert most == 2


def test_the_first_error_ends_a_trial_bare():
    async def answer(prompt: BenchPrompt, _: Any) -> Any:
        raise StartError(f"no answer to {prompt.question_id}")

    with pytest.raises(StartError, match="no answer to 0"):
        asyncio.run(closed_loop(PROMPTS, 1, {}, answer))


def test_every_level_and_repeat_is_run_by_every_configuration():
    trials = run(Schedule(PROMPTS, repeats=2, levels=(1, 2)), answered_by("plain", "eager"))
    assert len({one.key for one in trials}) == len(trials) == 2 * 2 * (9 + 1)


def test_what_is_done_already_is_not_run_again():
    schedule = Schedule(PROMPTS[:3], repeats=2)
    whole = run(schedule, answered_by("plain", "eager"))
    done = {one.key for one in whole[:5]}
    assert [one.key for one in run(schedule, answered_by("plain", "eager"), done)] == [
        one.key for one in whole[5:]
    ]


@pytest.fixture
def asked(monkeypatch) -> list[dict[str, Any]]:
    """What every session was asked with, the warm-up first."""
    seen: list[dict[str, Any]] = []

    async def follow(_, options, __):
        seen.append(options)
        return trial("any", 0, 1.0).results[0]

    async def question(_, prompt):
        return {"prompt": prompt}

    monkeypatch.setattr(runner, "follow", follow)
    monkeypatch.setattr(runner, "question", question)
    return seen


SERVED = [Configuration("plain", "127.0.0.1:1"), Configuration("eager", "127.0.0.1:1")]


def test_every_repeat_draws_anew_and_all_configurations_draw_alike(asked):
    block = Configuration("block", "127.0.0.1:1", "", {"rejection_sample_method": "block"})
    run(Schedule(PROMPTS[:1], repeats=2, seed=5), [SERVED[0], block])
    drawn = [(o["seed"], o.get("rejection_sample_method", "")) for o in asked if "seed" in o]
    assert sorted(drawn) == [(5, ""), (5, "block"), (6, ""), (6, "block")]


def test_every_session_shares_nothing_with_those_before_it(asked):
    run(Schedule(PROMPTS, repeats=2, levels=(1, 2)), SERVED)
    assert len(asked) == 2 + 2 * 2 * (9 + 9)
    assert all(one["ephemeral"] for one in asked)


def test_text_seen_before_is_answered_once_by_all_before_any_of_it_counts(asked):
    trials = run(Schedule(PROMPTS[:2], repeats=2, seed=5, seen_before=True), SERVED)
    warm_up, rest = asked[:2], asked[2:]
    assert all(one["ephemeral"] for one in warm_up)
    assert not any("ephemeral" in one for one in rest)
    # Another draw than those that are measured.
    assert [one["seed"] for one in rest[:4]] == [7] * 4
    assert {one["seed"] for one in rest[4:]} == {5, 6}
    assert len(trials) == len(rest) - 4 == 8


def cached(tokens: int) -> Any:
    """An answer whose prompt was found in a cache."""
    [result] = trial("any", 0, 1.0).results
    usage = replace(result.complete.usage, cached_tokens=tokens)
    return replace(result, complete=replace(result.complete, usage=usage))


def test_a_run_that_finds_a_cached_prompt_ends_and_names_the_trial():
    async def answer(prompt: BenchPrompt, options: Any) -> Any:
        return cached(4 if prompt.question_id == 2 else 0)

    configurations = [Configuration("plain", answer=answer)]
    trials: list[Trial] = []
    with pytest.raises(NotFresh) as caught:
        asyncio.run(run_schedule(configurations, Schedule(PROMPTS), trials.append, silent))
    assert str(caught.value) == (
        "plain, prompt 2 (qa), 1 at a time, repeat 1 was to find nothing of the texts before "
        "it, and 4 of 5 prompt tokens came from a cache"
    )
    assert len(trials) == 2


def counting(*counts: int) -> Configuration:
    """A configuration whose drafters' counter reads so, before and after each trial."""
    readings = iter(counts)

    async def recalled() -> int:
        return next(readings)

    return Configuration("eager", answer=same_answer, recalled=recalled)


def test_a_run_whose_drafts_come_from_other_texts_ends_and_names_the_trial():
    with pytest.raises(NotFresh, match=r"^eager, prompt 1 \(qa\), .* 3 draft tokens came from"):
        run(Schedule(PROMPTS[:2], repeats=1), [counting(10, 10, 10, 13)])


def test_text_seen_before_may_be_found_and_is_counted():
    trials = run(Schedule(PROMPTS[:2], repeats=1, seen_before=True), [counting(10, 12, 12, 15)])
    assert [one.recalled for one in trials] == [2, 3]


def test_the_report_says_what_was_found_of_texts_before(capsys):
    [own] = run(Schedule(PROMPTS[:1], repeats=1, seen_before=True), [counting(1, 8)])
    text = printed(sections_of([own], [Configuration("eager")], [], "plain", ""), {})
    assert text.partition("draft tokens from other texts")[2].split()[0] == "7"
    assert text.partition("prompt tokens from a cache")[2].split()[0] == "0%"


def test_a_summary_holds_every_figure_and_no_trial(tmp_path, capsys):
    trials = [trial("plain", 0, 4.0), trial("eager", 0, 2.0)]
    progress = main.Progress(answered_by("plain", "eager"), trials)
    whole, short = tmp_path / "whole.json", tmp_path / "short.json"
    main._conclude(main.BenchOptions(target="m", out=whole, summary=short), progress, complete=True)
    kept, written = json.loads(short.read_text()), json.loads(whole.read_text())
    assert written.pop("trials")
    assert kept == written
    assert {"machine", "date", "command", "commit", "scenario"} <= kept["setting"].keys()


def test_a_prompt_with_token_ids_is_asked_by_them(asked):
    prompts = [replace(PROMPTS[0], token_ids=(4, 5))]
    run(Schedule(prompts, repeats=1, warm_up=BenchPrompt(0, "warm-up", "Hello", (9,))), SERVED[:1])
    assert [one.get("tokens") for one in asked] == [(9,), (4, 5)]


def test_cpu_time_of_a_process_grows_with_its_work_in_threads_that_have_ended_too():
    before = cpu_seconds(os.getpid())
    assert before is not None

    def work() -> None:
        while time.thread_time() < 0.1:
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    now = cpu_seconds(os.getpid())
    assert now is not None
    assert now >= before + 0.1
    assert cpu_seconds(2**22 + 1) is None


def test_a_run_that_was_stopped_still_reports(capsys, tmp_path):
    progress = main.Progress(
        [Configuration("plain", "a:1", "verifier 1"), Configuration("eager", "a:2", "verifier 1")],
        [trial("plain", 0, 4.0), trial("eager", 0, 2.0), trial("plain", 1, 4.0)],
    )
    path = tmp_path / "figures.json"
    main._conclude(main.BenchOptions(target="m", out=path), progress, complete=False)
    assert "complete: False" in capsys.readouterr().out
    written = json.loads(path.read_text())
    [level] = written["levels"]
    assert level["figures"][1]["speed_up"]["median"] == 2.0
    assert level["gains"]["decoding"]["tasks"]["eager"]["qa"]["median"] == 2.0
    assert len(written["trials"]) == 3


def test_a_run_without_a_trial_reports_nothing(capsys):
    main._conclude(main.BenchOptions(target="m"), main.Progress(), complete=False)
    assert capsys.readouterr().out == ""


def printed(sections: list[Section], setting: dict[str, object]) -> str:
    file = io.StringIO()
    print_report(Console(file=file, width=200), sections, setting)
    return file.getvalue()


def test_the_report_has_a_column_for_each_configuration():
    trials = [trial("plain", 0, 4.0), trial("eager", 0, 2.0)]
    sections = sections_of(trials, answered_by("plain", "eager"), [], "plain", "")
    text = printed(sections, {"dtype": "float32"})
    assert "plain" in text.splitlines()[0]
    for row in ("decoding, tokens/s", "first token, ms", "whole answer, tokens/s"):
        after = text.partition(row)[2].splitlines()[1]
        assert after.startswith("… × plain")
        assert ("0.50 (0.50–0.50)" if "first" in row else "2.00 (2.00–2.00)") in after
    for table in ("decoding: over plain by task", "whole answer: over plain by task"):
        assert "2.00 (2.00–2.00)" in text.partition(table)[2]
    assert "dtype: float32" in text


def test_every_level_has_a_table_of_its_own():
    trials = [
        replace(trial(name, 0, wall), level=level)
        for level, name, wall in [(1, "plain", 4.0), (1, "eager", 2.0), (4, "plain", 3.0)]
    ]
    sections = sections_of(trials, answered_by("plain", "eager"), [], "plain", "")
    assert [section.level for section in sections] == [1, 4]
    assert sections[0].figures[1].speed_up is not None
    assert sections[1].figures[1].speed_up is None
    assert "4 at a time" in printed(sections, {})


def test_what_is_no_baseline_is_held_against_all_that_are():
    walls = {"plain": 4.0, "fixed": 3.0, "lookup": 2.0, "eager": 1.0, "matched": 2.0}
    trials = [trial(name, 0, wall) for name, wall in walls.items()]
    configurations = [
        replace(one, baseline=one.name not in ("eager", "matched")) for one in answered_by(*walls)
    ]
    [section] = sections_of(trials, configurations, [], "plain", "")
    for measure in ("decoding", "whole answer"):
        against = section.gains[measure].against
        ratios = {name: {key: one.median for key, one in own.items()} for name, own in against}
        assert ratios == {
            "eager": {"plain": 4.0, "fixed": 3.0, "lookup": 2.0},
            "matched": {"plain": 2.0, "fixed": 1.5, "lookup": 1.0},
        }
        shown = printed([section], {}).partition(f"{measure}: times as fast as")[2]
        assert "1.50 (1.50–1.50)" in shown


def test_the_report_sets_rules_beside_their_baseline():
    trials = [trial("standard", 0, 4.0), trial("block", 0, 2.0)]
    configurations = [replace(one, exact=False) for one in answered_by("standard", "block")]
    text = printed(sections_of(trials, configurations, [("block", "standard")], "plain", ""), {})
    assert "block / standard" in text
    assert "not promised" in text
    assert "2.00 (2.00–2.00)" in text.partition("block / standard")[2]


def test_the_json_holds_no_text(tmp_path):
    path = tmp_path / "deep" / "figures.json"
    publish(summary_of([], {}), [trial_content(trial("plain", 0, 4.0))], path, None)
    assert '"text"' not in path.read_text()
