"""No command, flag, variable, default, choice or bound is lost or changed by accident."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from services.cluster import process
from services.console.main import flags_of
from tests.console.command_line import (
    FILE,
    REWRITE,
    Flag,
    as_text,
    held,
    read,
)
from tests.console.typed import paceline
from tests.console.typed import read as read_options

HELD = held()
PROCESSES = tuple(f"paceline {role}" for role in process.ROLES)
ACCEPT = f"If that is meant, run `{REWRITE}` and commit {FILE.name} with the change."
PICKY = ("integer", "number", "switch", "choice")
"""Kinds of flags that do not take every text."""
NEEDED = {"--target": "m", "--address": "h:1", "PROMPT": "hello"}
SAMPLES: dict[str, tuple[str, Any]] = {
    "text": ("other", "other"),
    "path": ("some/file", Path("some/file")),
    "integer": ("7", 7),
    "switch": ("1", True),
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)


def test_the_command_line_is_the_one_that_the_file_holds() -> None:
    now = read()
    assert now == HELD, ACCEPT
    assert FILE.read_text("utf-8") == as_text(now), ACCEPT


def with_a_variable(processes: bool) -> list[Any]:
    return [
        pytest.param(command, name, flag, id=f"{command} {name}")
        for command, flags in HELD.items()
        for name, flag in flags.items()
        if "env" in flag and (command in PROCESSES) == processes
    ]


def needed_beside(command: str, name: str) -> list[str]:
    """The words without which a command is not read, but for one flag."""
    others = [one for one, flag in HELD[command].items() if "required" in flag and one != name]
    words = [[one, NEEDED[one]] if one.startswith("-") else [NEEDED[one]] for one in others]
    return [word for each in words for word in each]


@pytest.mark.parametrize(("command", "name", "flag"), with_a_variable(processes=False))
def test_a_variable_sets_the_value_of_its_flag(
    command: str, name: str, flag: Flag, monkeypatch: pytest.MonkeyPatch
) -> None:
    different = [word for word in flag.get("choices", ()) if word != flag["default"]]
    text, value = (different[0],) * 2 if different else SAMPLES[flag["kind"]]
    monkeypatch.setenv(flag["env"], text)
    word = command.removeprefix("paceline ")
    options = read_options(word, *needed_beside(command, name))
    field = flags_of(word).known[name].name
    given = getattr(options if hasattr(options, field) else options.connection, field)
    assert given == ([value] if "many" in flag else value)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings that a process would have run with."""
    settings: list[Any] = []

    def run(role: process.Role, given: Any) -> int:
        settings.append(given)
        return 0

    monkeypatch.setattr(process.Role, "run", run)
    monkeypatch.setattr(process, "setup_logging", lambda **_: None)
    return settings


@pytest.mark.parametrize(
    ("command", "name", "flag"),
    [case for case in with_a_variable(processes=True) if case.values[2]["kind"] in PICKY],
)
def test_a_process_reads_each_variable_and_names_it_where_its_value_is_not_allowed(
    command: str, name: str, flag: Flag, served: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TARGET", "m")
    monkeypatch.setenv(flag["env"], "nonsense")
    done = paceline(*command.split()[1:])
    assert done.exit_code == 2
    assert f"{flag['env']}: 'nonsense' is not allowed" in done.output
    assert not served


@pytest.mark.parametrize(
    ("command", "variables", "attribute", "value"),
    [
        ("orchestrator", {"PACELINE_PORT": "1234"}, "port", 1234),
        ("orchestrator", {"PACELINE_DURABILITY": "relaxed"}, "durability", "relaxed"),
        ("orchestrator", {"PACELINE_VLLM_ENGINE": "true"}, "vllm_engine", True),
        (
            "orchestrator",
            {"PACELINE_VERIFIER_ADDRESSES": "a:1,b:2"},
            "verifier_addresses",
            ("a:1", "b:2"),
        ),
        ("drafter", {"PACELINE_REDIS": "redis://r"}, "redis", "redis://r"),
        ("drafter", {"PACELINE_GRAPH_LEAF_WEIGHT": "0.25"}, "graph_leaf_weight", 0.25),
        ("drafter", {"PACELINE_TLS_CA": "ca.pem"}, "tls_ca", Path("ca.pem")),
        ("verifier", {"PACELINE_TARGET": "m"}, "target", "m"),
        ("verifier", {"PACELINE_TARGET": "m", "PACELINE_CPUS": "0,2"}, "cpus", (0, 2)),
    ],
)
def test_a_process_runs_with_what_the_environment_says(
    command: str,
    variables: dict[str, str],
    attribute: str,
    value: object,
    served: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    done = paceline(command)
    assert done.exit_code == 0, done.output
    (settings,) = served
    assert getattr(settings, attribute) == value


@pytest.mark.parametrize("given", ["flag", "variable"])
@pytest.mark.parametrize(
    ("command", "flag", "value", "told"),
    [
        ("up", "--protocol", "2", "there is one protocol; leave it out"),
        ("drafter", "--protocol", "1", "there is one protocol; leave it out"),
        ("orchestrator", "--no-fallback", "", "give --pacing eager"),
        ("orchestrator", "--chained-blocks", "1", "a verifier runs its sessions"),
        ("verifier", "--gather-ms", "0", "a verifier waits for no session"),
    ],
)
def test_an_option_of_the_last_release_is_refused_with_what_to_do_instead(
    command: str,
    flag: str,
    value: str,
    told: str,
    given: str,
    served: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, words = flag, [flag, *([value] if value else [])]
    if given == "variable":
        name = "PACELINE_" + flag.removeprefix("--").removeprefix("no-").replace("-", "_").upper()
        words = []
        monkeypatch.setenv(name, value or "false")
    done = paceline(command, *words)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{name} is no longer there: {told}" in done.stderr
    assert not served
