"""The `paceline` command as a person types it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from paceline.__main__ import find_application

from services.console.main import COMMANDS, PROCESSES, RENAMED, runner

pytestmark = pytest.mark.processes

HEAVY = ("torch", "transformers", "grpc", "rich.console", "pydantic", "redis")


def paceline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def test_help_names_every_command_and_loads_nothing_heavy():
    program = (
        "import sys\nfrom services.console.main import run\nrun(['--help'])\n"
        f"print('loaded', sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    for command in ("up", "generate", "demo", "bench", "train head", *PROCESSES):
        assert f"  {command} " in done.stdout
    assert done.stdout.rstrip().endswith("loaded []")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("verifier",), "--target is needed (or PACELINE_TARGET)"),
        (("verifier", "--target", "m", "--dtype", "int3"), "--dtype: 'int3' is not allowed"),
        (("drafter", "--port", "70000"), "--port: '70000' is not allowed"),
        (("drafter", "--ngram-min", "9"), "ngram_min 9 is above ngram_max 4"),
        (("orchestrator", "--pacing", "hasty"), "--pacing: 'hasty' is not allowed"),
    ],
)
def test_a_setting_that_is_not_allowed_ends_the_process_with_one_line(arguments, named):
    done = paceline(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"paceline {arguments[0]}: ")
    assert named in done.stderr


@pytest.mark.parametrize("command", ["--help", "demo"])
def test_an_output_that_has_no_room_ends_a_command_with_one_line(command):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "paceline", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, "paceline: the disk has no room: make some\n")


def test_an_address_where_nobody_answers_ends_generate_with_one_line():
    done = paceline("generate", "--address", "127.0.0.1:1", "hello")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_bad_prompt_file_ends_the_bench_before_anything_starts(tmp_path):
    done = paceline("bench", "--prompts", str(tmp_path / "none.jsonl"))
    assert done.returncode == 1
    assert done.stderr.startswith("paceline bench: --prompts: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("fly",), ("train",), ("train", "fly")])
def test_a_command_that_does_not_exist_is_refused(words):
    done = paceline(*words)
    told = f"paceline: there is no command {' '.join(words)}; see paceline --help\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize("old", RENAMED)
def test_a_command_goes_on_under_the_name_it_had(old):
    done = paceline(old, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: paceline {RENAMED[old]} [flags]")
    assert done.stderr == f"paceline {old}: this is paceline {RENAMED[old]} now\n"


def test_what_is_distilled_no_longer_says_what_to_use():
    done = paceline("distill", "--target", "m", "--out", "o")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use paceline train head" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("raised", "status"), [("KeyboardInterrupt", 130), ("BrokenPipeError", 1)])
def test_a_command_that_is_stopped_or_that_nobody_reads_ends_without_a_word(raised, status):
    program = (
        "import sys\nfrom services.console import main\n"
        f"def run(*_):\n    raise {raised}\n"
        "main.Command.run = run\nsys.argv[1:] = ['token']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_every_command_has_what_runs_it():
    for name, command in COMMANDS.items():
        if name not in PROCESSES:
            module = import_module(command.module or command.options.partition(":")[0])
            assert callable(getattr(module, runner(name)))


@pytest.mark.parametrize("command", ["bench", "plan", "up"])
def test_a_command_that_is_not_installed_says_so_in_one_line(command):
    absent = "pydantic" if command == "up" else "bench"
    program = (
        "import sys\nfrom services.console.main import main\n"
        f"sys.modules[{absent!r}] = None\nsys.argv[1:] = [{command!r}]\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(
        rf"paceline {command}: needs the module {absent}[._a-z]*, which is not installed here "
        r"\(pip install 'paceline\[local\]' brings all there are\)\n",
        done.stderr,
    )


def test_what_a_command_starts_finds_the_servers_of_the_wheel_first_and_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/here"])
    monkeypatch.setenv("PYTHONPATH", "/others")
    for _ in range(2):
        find_application("/wheel")
    assert sys.path[0] == "/wheel"
    assert os.environ["PYTHONPATH"] == f"/wheel{os.pathsep}/others"
