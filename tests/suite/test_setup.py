"""What `make setup` says of a machine where it cannot go on, and that it goes on later."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PYTHON = """#!/bin/sh
# Stands for a Python: what it is asked for is written down; what $FAILS matches fails with $SAYS.
echo "$*" >> "$ASKED"
case "$*" in $FAILS) [ -z "$SAYS" ] || echo "$SAYS" >&2; exit 1 ;; esac
case "$*" in
  *sys.version_info\\[*) echo "${VERSION:-(3, 11)}" ;;
  '-m venv'*) rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *torch.__version__*) echo "setup: done, with torch 2" ;;
esac
"""
NOTHING = "no such words"
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
AWAY = "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\nERROR: No matching"


@dataclass
class Checkout:
    """A copy of what `make setup` needs, on a path with a space, and a Python that is none."""

    folder: Path

    def make(self, *words: str, **environment: str) -> tuple[int, list[str], list[str]]:
        """The status, the lines of our own, and what Python was asked for meanwhile."""
        asked = self.folder / "asked"
        asked.write_text("")
        done = subprocess.run(
            ("make", "--no-print-directory", *words),
            cwd=self.folder,
            env={"PATH": f"{self.folder}:/usr/bin:/bin", "FAILS": NOTHING, "ASKED": str(asked)}
            | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = [line for line in done.stderr.splitlines() if not line.startswith("make: ")]
        return done.returncode, said, asked.read_text().splitlines()

    @property
    def packages(self) -> Path:
        return self.folder / ".venv" / "lib" / "python3.11" / "site-packages"

    @property
    def done(self) -> bool:
        return (self.folder / ".venv" / ".setup-done").exists()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "a b"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    python = folder / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return Checkout(folder)


@pytest.mark.parametrize("target", ["setup", "demo", "test"])
@pytest.mark.parametrize(
    ("fails", "says", "told"),
    [
        ("*sys.exit*", "", "setup: python3 is older than Python 3.11; name another: "),
        ("*ensurepip*", "ModuleNotFoundError", "setup: python3 has no venv module (Debian, "),
        ("*-m*venv*", "Error: [Errno 28] No space left on device", "setup: the disk is full: "),
        ("*-m pip install*", FULL, "setup: the disk is full: "),
        (
            "*-m pip install*",
            "Error: [Errno 30] Read-only file system: '.venv'",
            "setup: cannot write: ",
        ),
        ("*pip*--upgrade*", AWAY, "setup: no package index answers; "),
        ("*pip*--editable*", AWAY, "setup: no package index answers; "),
        ("*pip*smollm2*", "error: incomplete-download", "setup: a download broke off; "),
        ("*pip*smollm2*", "Traceback\nERROR: odd", "setup: python ended with status 1: ERROR: odd"),
        ("*torch*", "ImportError: libfoo.so", "setup: python ended with status 1: ImportError"),
    ],
)
def test_what_goes_wrong_is_one_line_that_says_what_to_do(checkout, target, fails, says, told):
    status, [line], _ = checkout.make(target, FAILS=fails, SAYS=says)
    assert status == 2
    assert line.startswith(told)
    assert not checkout.done


def test_a_python_that_is_not_there_is_named(checkout):
    status, [line], asked = checkout.make("setup", "PYTHON=python3.99")
    assert (status, asked) == (2, [])
    assert line == (
        "setup: python3.99 does not run; name a Python 3.11 or newer: make setup PYTHON=python3.12"
    )


def test_the_next_call_goes_on_with_the_venv_that_is_there_and_a_later_one_has_nothing_to_do(
    checkout,
):
    checkout.make("setup", FAILS="*pip*--editable*", SAYS=AWAY)
    status, said, asked = checkout.make("setup")
    assert (status, said, checkout.done) == (0, [], True)
    assert not any("-m venv" in line for line in asked)
    assert sum("pip install" in line for line in asked) == 3
    assert checkout.make("setup") == (0, [], [])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"FAILS": "*--version*", "SAYS": "no pip"}, id="without pip"),
        pytest.param({"VERSION": ""}, id="of another Python"),
    ],
)
def test_a_venv_that_is_not_whole_is_made_anew(checkout, change):
    checkout.make("setup", FAILS="*pip*--editable*", SAYS=AWAY)
    if "VERSION" in change:
        inner = checkout.folder / ".venv" / "bin" / "python"
        inner.write_text(inner.read_text().replace("(3, 11)", "(3, 12)"))
    status, said, asked = checkout.make("setup", **change)
    assert (status, said, checkout.done) == (0, [], True)
    assert "-m venv --clear .venv" in asked


def test_a_package_that_was_unpacked_in_part_is_installed_again(checkout):
    checkout.make("setup", FAILS="*pip*--editable*", SAYS=AWAY)
    whole, half = checkout.packages / "whole-1.dist-info", checkout.packages / "half-1.dist-info"
    for package in (whole, half):
        package.mkdir(parents=True)
        (package / "METADATA").write_text("Name: x")
    (whole / "INSTALLER").write_text("pip\n")
    checkout.make("setup")
    assert (whole.exists(), half.exists()) == (True, False)


def test_an_index_of_smaller_builds_is_passed_on(checkout):
    _, _, asked = checkout.make("setup", "TORCH_INDEX=https://builds.example/cpu")
    [extra] = [line for line in asked if "--extra-index-url" in line]
    assert "--extra-index-url https://builds.example/cpu --editable .[local] --group dev" in extra
