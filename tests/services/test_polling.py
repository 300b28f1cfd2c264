"""Which of gRPC's event loops a process uses; each in a fresh interpreter."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from services.runtime.polling import poll_in_one_thread

VARIABLE = "GRPC_EXPERIMENTS"
SETTING = f"import os; print(os.environ.get('{VARIABLE}', 'unset'))"


def python(code, **more):
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | more, capture_output=True, text=True, check=True
    )


def command(code):
    """Runs `paceline --help`, then `code`."""
    return (
        "import sys\nimport services.console.main as console\n"
        "assert 'grpc' not in sys.modules, 'too late: grpc has read the variable'\n"
        "sys.argv = ['paceline', '--help']\n"
        f"try:\n    console.main()\nexcept SystemExit:\n    pass\n{code}"
    )


def test_the_command_chooses_before_grpc_is_imported_and_grpc_knows_the_names():
    told = python(command(f"import grpc\n{SETTING}"))
    assert told.stdout.endswith("-event_engine_client,-event_engine_listener\n")
    assert "experiment" not in told.stderr


def test_grpc_says_when_it_does_not_know_a_name():
    assert "Unknown experiment" in python("import grpc", **{VARIABLE: "-no_such_loop"}).stderr


def test_what_the_user_chose_stays():
    told = python(command(SETTING), **{VARIABLE: "event_engine_client"})
    assert told.stdout.endswith("\nevent_engine_client\n")


@pytest.mark.parametrize("release", ["1.79.3", "1.86.0", "2.0.0"])
def test_another_grpc_keeps_its_default(release, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(metadata, "version", lambda _: release)
    poll_in_one_thread()
    assert VARIABLE not in os.environ
