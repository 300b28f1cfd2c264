"""What a page says is held by a test is held by tests that CI runs, every one of them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, EVERY_PAGE, ROOT
from tests.docs.test_tables import tables

MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text().replace("\\\n", " ")
HELD_BY = ("held by", "test")
"""How the column is called that names tests."""
QUIET = ("-p", "no:cacheprovider", "--collect-only")
CUT = "--- the next run ---"
_NAMED = re.compile(r"`((?:tests/)?[\w/]+(?:\.py)?)`")
_RUNS = re.compile(r"^make (test|faults|proof)(?![\w-])([^|>\n]*)", re.MULTILINE)


def named(page: Path) -> set[str]:
    """The files and folders of tests that a page's tables name.

    A bare file name stands in the folder of the one before it.
    """
    found, folder = set(), ""
    for heading, *rows in tables(page.read_text("utf-8")):
        if heading[-1].lower() not in HELD_BY:
            continue
        for row in rows:
            for name in _NAMED.findall(row[-1]):
                place = name if "/" in name else f"{folder}/{name}"
                folder = place.rpartition("/")[0]
                found.add(place)
    return found


PROMISES = {page: named(page) for page in EVERY_PAGE if named(page)}
GUARANTEES = PROMISES[DOCS / "guarantees.md"]


def pytest_arguments(target: str, given: str) -> list[str]:
    """What `make TARGET PYTEST=GIVEN` tells pytest of the tests to run."""
    [recipe] = re.findall(rf"^{target}:.*\n\t.* -m pytest (.*)$", MAKEFILE, re.MULTILINE)
    return shlex.split(recipe.replace("$(PYTEST)", given).replace("$(JOBS)", "0"))


def runs() -> Iterator[list[str]]:
    """The arguments of each run of pytest in CI."""
    for target, rest in _RUNS.findall(CI):
        variables = dict(word.partition("=")[::2] for word in shlex.split(rest) if "=" in word)
        yield pytest_arguments(target, variables.get("PYTEST", ""))


def collected(*runs: Sequence[str]) -> list[set[str]]:
    """The node ids of the tests that the arguments of each run choose; in one process."""
    program = (
        f"import pytest, sys\nfor run in {runs!r}: pytest.main([*{QUIET!r}, *run]), print({CUT!r})"
    )
    done = subprocess.run(
        (sys.executable, "-c", program),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    parts = done.stdout.split(CUT)[:-1]
    assert not any(re.search(r"\d errors?", part) for part in parts), done.stdout[-2000:]
    return [{line for line in part.splitlines() if "::" in line} for part in parts]


def files_of(place: str) -> list[str]:
    """The files that a place stands for."""
    path = ROOT / place
    inside = sorted(path.rglob("test_*.py"))
    return [place] if path.is_file() else [str(file.relative_to(ROOT)) for file in inside]


def test_ci_runs_every_test_and_some_that_take_minutes():
    every, faults, *_ = sorted(runs(), key=lambda arguments: "faults" in arguments)
    assert every[-1] == "--no-loadscope-reorder"
    assert faults[:2] == ["-m", "faults"]
    assert "\nmake test-vllm\n" in CI, "what has an environment of its own"
    assert "\nmake test-avx2\n" in CI, "what computes, on a CPU that has less"


@pytest.mark.parametrize("page", PROMISES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path):
    assert [place for place in PROMISES[page] if not (ROOT / place).exists()] == []


def test_every_test_that_holds_a_guarantee_is_run_by_ci():
    files = sorted({file for place in GUARANTEES for file in files_of(place)})
    assert "tests/faults/test_workers.py" in files
    of_ci = [
        [*arguments, *([] if any(word.startswith("tests") for word in arguments) else files)]
        for arguments in runs()
    ]
    every, *chosen = collected(["-m", "", *files], *of_ci)
    assert len(every) > len(files)
    assert sorted(every.difference(*chosen)) == []
