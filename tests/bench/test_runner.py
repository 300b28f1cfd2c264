"""The order in which a bench runs, and the report of a run that was stopped."""

from __future__ import annotations

import io
import json

from rich.console import Console

from bench import main
from bench.figures import figures_of
from bench.prompts import BenchPrompt
from bench.report import print_report, write_json
from bench.runner import Configuration, Schedule, rotated
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


def test_the_json_holds_no_text(tmp_path):
    path = tmp_path / "deep" / "figures.json"
    write_json(path, [], [trial("plain", 0, 4.0)], {})
    assert '"text"' not in path.read_text()
