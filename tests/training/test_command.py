"""`paceline train head` as a person runs and stops it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from services.cluster.progress import Bars, Lines, StopSign, time_left
from services.contract.errors import StartError
from services.runtime.options import fractions, numbers
from services.training.reporting import Stopped
from tests.console.typed import read

_GIVEN = """
--head-tokens 200 --prompt-tokens 24 --answer-tokens 40 --batch 16
--dtype float32 --threads 1 --device cpu --batch-positions 256 --write 1200
"""


def command(target, out, *more):
    given = ["--target", str(target), "--out", str(out), *_GIVEN.split(), *map(str, more)]
    return [sys.executable, "-m", "paceline", "train", "head", *given]


def wait_for_line(process, beginning):
    for line in process.stdout:
        if line.startswith(beginning):
            return line
    raise AssertionError(f"no line {beginning!r}; it ended with {process.wait()}")


@pytest.mark.processes
def test_a_signal_ends_it_with_one_line_and_the_same_command_goes_on(target, tmp_path):
    # Long enough to be stopped in the middle, on any machine.
    started = command(target, tmp_path / "out", "--train", 10_000_000)
    process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_line(process, "training: 0 of")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=250)
    assert process.returncode == 130
    work = tmp_path / "out.work"
    assert complaints == (f"paceline train head: stopped; the same command goes on from {work}\n")
    assert not (tmp_path / "out").exists()

    again = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = wait_for_line(again, "training: ")
    assert int(re.findall(r"\d+", line)[0]) > 0
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=250)
    assert again.returncode == 130


@pytest.mark.processes
def test_a_whole_run_ends_with_the_folder_and_says_where_its_card_is(target, tmp_path):
    started = command(target, tmp_path / "out", "--train", 2000, "--storage", "bfloat16")
    done = subprocess.run(started, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert str(tmp_path / "out" / "README.md") in done.stdout
    assert "writing texts: 1200 of 1200" in done.stdout
    card = json.loads((tmp_path / "out" / "config.json").read_text())["paceline"]["card"]
    assert card["command"].startswith(f"paceline train head --target {target} --out ")
    assert card["command"].endswith("--train 2000 --storage bfloat16")


@pytest.mark.processes
def test_bad_input_ends_it_with_one_line(target, tmp_path):
    started = command(target, tmp_path / "out", "--head-tokens", 9999)
    done = subprocess.run(started, capture_output=True, text=True, timeout=250)
    assert done.returncode == 1
    assert done.stderr.startswith("paceline train head: --head-tokens: 9999 is not allowed")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_lists_are_read_with_their_ranges():
    assert numbers("0, 2-4,9") == (0, 2, 3, 4, 9)
    assert numbers("") == ()
    assert fractions("0,0.7, 1") == (0.0, 0.7, 1.0)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1.5", "3-1"])
def test_a_bad_list_is_named_by_its_option(text):
    needed = ("--target", "m", "--out", "o")
    with pytest.raises(StartError, match="--layers: "):
        read("train head", *needed, "--layers", text)
    with pytest.raises(StartError, match="--temperatures: "):
        read("train head", *needed, "--temperatures", "warm")


def test_a_signal_stops_between_two_steps_and_a_second_one_at_once():
    before = signal.getsignal(signal.SIGINT)
    stop = StopSign()
    with stop.watching():
        stop.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped):
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_terminal_a_line_is_printed_every_half_minute(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("services.cluster.progress.time.monotonic", lambda: now[0])
    lines = Lines(StopSign())
    lines.stage("training", 1000, 200)
    for done in (210, 220, 300, 310, 1000, 1000):
        now[0] += 10.0
        lines.advance(done, "held out: acceptance 0.400")
    assert capsys.readouterr().out.splitlines() == [
        "training: 200 of 1000",
        # 100 in 30 seconds, 700 to go.
        "training: 300 of 1000, 0:03:30 left; held out: acceptance 0.400",
        "training: 1000 of 1000, 0:00:00 left; held out: acceptance 0.400",
    ]


def test_time_left_goes_by_this_runs_speed():
    assert time_left(50, 100, 3600.0) == "2:00:00"
    assert time_left(0, 100, 5.0) == "?"


def test_in_a_terminal_each_stage_has_its_bar(tmp_path):
    with (tmp_path / "screen").open("w") as screen:
        console = Console(file=screen, force_terminal=True, width=100)
        columns = (TextColumn("{task.description} {task.completed} {task.fields[figures]}"),)
        stop = StopSign()
        with Progress(*columns, console=console) as progress:
            bars = Bars(progress, stop)
            bars.say("loading")
            bars.stage("training", 1000, 200)
            bars.advance(400, "acceptance 0.4")
            with stop.watching():
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Stopped):
                bars.advance(500)
            assert progress.tasks[0].total == 1000
            assert progress.tasks[0].completed == 500
    assert "loading" in (tmp_path / "screen").read_text()
