"""A run says at its end which tests were tried again, and how often."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SUITE = """
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def fails(name, times):
    with (HERE / name).open("a") as attempts:
        attempts.write("x")
    assert len((HERE / name).read_text()) > times

def test_sound():
    pass

@pytest.mark.flaky(reruns=3)
def test_passes_at_the_third_attempt():
    fails("a", 2)
"""
FAILING = """
import pytest

@pytest.mark.flaky(reruns=1)
def test_never_passes():
    assert False
"""


def last_words(folder: Path, *flags: str) -> list[str]:
    """How a run of the tests in `folder` ends."""
    (folder / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null")
    done = subprocess.run(
        [*command, "--rootdir", str(folder), *flags, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("retried")]


@pytest.mark.parametrize("flags", [(), ("-n", "2", "--dist", "loadfile")])
def test_every_retried_test_is_named_with_its_attempts(tmp_path: Path, flags: tuple[str, ...]):
    (tmp_path / "test_a.py").write_text(SUITE)
    (tmp_path / "test_b.py").write_text(FAILING)
    assert last_words(tmp_path, *flags) == [
        "retried: 3, test_a.py::test_passes_at_the_third_attempt (2x), "
        "test_b.py::test_never_passes (1x)"
    ]


def test_a_run_without_retries_says_so_too(tmp_path: Path):
    (tmp_path / "test_a.py").write_text("def test_sound():\n    pass\n")
    assert last_words(tmp_path) == ["retried: 0"]
