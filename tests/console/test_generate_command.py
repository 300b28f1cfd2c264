"""`paceline generate`: how it connects, and that it shows no secret."""

from __future__ import annotations

import pytest
from paceline import Chunk, Complete, FinishReason, SpecDecodeMetrics, Started, Usage
from rich.console import Console

from services.console import generate as generation
from services.console.connection import Connection
from services.contract.errors import StartError
from tests.console import typed


@pytest.fixture
def asked(monkeypatch):
    """What the command would run."""
    seen = []

    def run(options):
        seen.append(options)
        return 0

    monkeypatch.setattr(generation, "run_generate", run)
    return seen


def paceline(*arguments, **environment):
    return typed.paceline("generate", "hi", *arguments, **environment)


def test_every_connection_flag_reaches_the_client(asked, tmp_path):
    files = {}
    for name in ("ca", "cert", "key"):
        files[name] = tmp_path / name
        files[name].write_text(name)
    flags = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    places = ["--address", "a:1", "--address", "b:2,c:3", "--server-name", "n"]
    rest = ["--token", "secret", "--insecure", "--no-resume"]
    assert paceline(*places, *flags, *rest).exit_code == 0
    assert asked[0].connection.arguments() == {
        "address": ["a:1", "b:2,c:3"],
        "token": "secret",
        "ca": b"ca",
        "cert": b"cert",
        "key": b"key",
        "server_name": "n",
        "insecure": True,
    }
    assert asked[0].no_resume


def test_the_environment_says_where_to_connect_and_what_to_show_there(asked):
    assert paceline(PACELINE_ADDRESS="a:1,b:2", PACELINE_TOKEN="secret").exit_code == 0
    arguments = asked[0].connection.arguments()
    assert (arguments["address"], arguments["token"]) == (["a:1,b:2"], "secret")
    assert (asked[0].no_resume, arguments["insecure"]) == (False, False)


def test_a_token_is_not_shown(asked):
    shown = paceline("--help", PACELINE_TOKEN="secret")
    assert "PACELINE_TOKEN" in shown.stdout
    assert "secret" not in shown.stdout
    paceline("--address", "a:1", "--token", "secret")
    assert "secret" not in repr(asked[0])


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(StartError, match=r"--ca: cannot read .*absent\.pem"):
        Connection(["a:1"], ca=tmp_path / "absent.pem").arguments()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--address", "10.0.0.1:1"], "10.0.0.1:1 is not loopback"),
        (["--address", "localhost:1", "--ca", "/absent.pem"], "--ca: cannot read /absent.pem"),
        (["--address", "localhost:1", "--token", "two words"], "token: expected visible ASCII"),
    ],
)
def test_a_connection_that_is_not_allowed_ends_with_one_line(arguments, named, capsys):
    ended = paceline(*arguments)
    error = ended.stderr + capsys.readouterr().err
    assert ended.exit_code == 2
    assert error.startswith("paceline generate: ")
    assert named in error
    assert error.count("\n") == 1
    assert "two words" not in error


def test_several_completions_are_shown_one_by_one_as_they_end(capsys):
    console = Console(highlight=False, force_terminal=False)
    shown = generation.OneByOne(console, 2)
    usage, sums = Usage(3, 2, 0), SpecDecodeMetrics(0, 0, 0, 1.0, 0.0, (), 2, 1.0)
    for index in (0, 1):
        shown.see(Started(f"r.{index}", 3, 7 + index, index))
    for index in (1, 0, 1, 0):
        shown.see(Chunk(0, (5,), "ab"[index], index=index))
    for index in (1, 0):
        shown.see(Complete(FinishReason.LENGTH, usage, sums, "", index=index))
    told = capsys.readouterr()
    assert told.out == "bb\naa\n"
    assert "session r.0 · seed 7" in told.err
    assert "session r.1 · seed 8" in told.err
