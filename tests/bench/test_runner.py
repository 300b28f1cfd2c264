"""The order in which a bench runs, and the report of a run that was stopped."""

from __future__ import annotations

import asyncio
import io
import json

from rich.console import Console

from bench import main, runner
from bench.comparison import compare
from bench.figures import figures_of
from bench.prompts import BenchPrompt
from bench.report import print_report, write_json
from bench.runner import Configuration, Schedule, rotated, run_schedule
from tests.bench.test_figures import trial

PROMPTS = [BenchPrompt(number, "qa", "?") for number in range(5)]


def test_every_configuration_comes_first_in_its_turn():
    configurations = [Configuration(name, "a:1", "") for name in ("plain", "fixed", "eager")]
    firsts = [rotated(configurations, turn)[0].name for turn in range(3)]
    assert firsts == ["plain", "fixed", "eager"]
    assert {one.name for one in rotated(configurations, 1)} == {"plain", "fixed", "eager"}


def test_prompts_are_grouped_by_concurrency_and_none_is_lost():
    groups = Schedule(PROMPTS, concurrency=2).groups
    assert [len(group) for group in groups] == [2, 2, 1]
    assert [prompt for group in groups for prompt in group] == PROMPTS


def test_every_repeat_draws_anew_and_all_configurations_draw_alike(monkeypatch):
    asked: list[tuple[int, str]] = []

    async def follow(_, options, __):
        if "seed" in options:
            asked.append((options["seed"], options.get("rejection_sample_method", "")))
        return trial("any", 0, 1.0).results[0]

    async def question(_, prompt):
        return {"prompt": prompt}

    monkeypatch.setattr(runner, "follow", follow)
    monkeypatch.setattr(runner, "question", question)
    configurations = [
        Configuration("plain", "127.0.0.1:1", ""),
        Configuration("block", "127.0.0.1:1", "", {"rejection_sample_method": "block"}),
    ]
    schedule = Schedule(PROMPTS[:1], repeats=2, seed=5)
    asyncio.run(run_schedule(configurations, schedule, [], lambda _: None))
    assert sorted(asked) == [(5, ""), (5, "block"), (6, ""), (6, "block")]


def test_a_run_that_was_stopped_still_reports(capsys, tmp_path):
    progress = main.Progress(
        [Configuration("plain", "a:1", "verifier 1"), Configuration("eager", "a:2", "verifier 1")],
        [trial("plain", 0, 4.0), trial("eager", 0, 2.0), trial("plain", 1, 4.0)],
    )
    path = tmp_path / "figures.json"
    options = main.BenchOptions(target="m", out=path)
    main._conclude(options, progress, complete=False)
    assert "complete: False" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["figures"][1]["speed_up"]["median"] == 2.0
    assert len(written["trials"]) == 3


def test_a_run_without_a_trial_reports_nothing(capsys):
    main._conclude(main.BenchOptions(target="m"), main.Progress(), complete=False)
    assert capsys.readouterr().out == ""


def test_the_report_has_a_column_for_each_configuration():
    trials = [trial("plain", 0, 4.0), trial("eager", 0, 2.0)]
    file = io.StringIO()
    figures = [figures_of(trials, name) for name in ("plain", "eager")]
    print_report(Console(file=file, width=200), figures, {"dtype": "float32"})
    text = file.getvalue()
    assert "plain" in text.splitlines()[0]
    assert "2.00 (2.00–2.00)" in text
    assert "dtype: float32" in text


def test_the_report_sets_rules_beside_their_baseline():
    trials = [trial("standard", 0, 4.0), trial("block", 0, 2.0)]
    file = io.StringIO()
    figures = [figures_of(trials, name, exact=False) for name in ("standard", "block")]
    comparisons = [compare(trials, "block", "standard")]
    print_report(Console(file=file, width=200), figures, {}, comparisons)
    text = file.getvalue()
    assert "block / standard" in text
    assert "not promised" in text
    assert "2.00 (2.00–2.00)" in text.partition("block / standard")[2]


def test_the_json_holds_no_text(tmp_path):
    path = tmp_path / "deep" / "figures.json"
    write_json(path, [], [trial("plain", 0, 4.0)], {})
    assert '"text"' not in path.read_text()
