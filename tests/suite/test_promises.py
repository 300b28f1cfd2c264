"""What a page says is held by a test is held by tests that CI runs, every one of them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression

from tests.docs.pages import DOCS, EVERY_PAGE, ROOT
from tests.docs.test_tables import tables
from tests.suite import since

MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text().replace("\\\n", " ")
HELD_BY = ("held by", "test")
"""How the column is called that names tests."""
QUIET = ("-p", "no:cacheprovider", "--collect-only")
CUT = "--- the next run ---"
_NAMED = re.compile(r"`((?:tests/)?[\w/]+(?:\.py)?)`")
_PLUGIN = """
import json
class Marks:
    def pytest_collection_finish(session):
        for item in session.items:
            print(json.dumps([item.nodeid, *{mark.name for mark in item.iter_markers()}]))
"""
_PYTEST = re.compile(r" -m pytest (.*)$", re.MULTILINE)
_RUNS = re.compile(r"^part make (test-all|faults|proof)(?![\w-])([^|>\n]*)", re.MULTILINE)


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


def pytest_arguments(target: str, given: str = "") -> list[list[str]]:
    """What `make TARGET PYTEST=GIVEN` tells pytest of the tests to run, of each run."""
    told = subprocess.run(
        ("make", "--dry-run", "--always-make", target, f"PYTEST={given}", "JOBS=0"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [shlex.split(line) for line in _PYTEST.findall(told)]


def runs() -> Iterator[list[str]]:
    """The arguments of each run of pytest in CI."""
    for target, rest in _RUNS.findall(CI):
        variables = dict(word.partition("=")[::2] for word in shlex.split(rest) if "=" in word)
        yield from pytest_arguments(target, variables.get("PYTEST", ""))


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
    # Each run of one process escapes ids once more.
    parts = [re.sub(r"\\+", r"\\", part) for part in parts]
    return [{line for line in part.splitlines() if "::" in line} for part in parts]


@cache
def marks() -> dict[str, set[str]]:
    """Of every test by node id."""
    done = subprocess.run(
        (
            sys.executable,
            "-c",
            f"import pytest\n{_PLUGIN}\npytest.main({[*QUIET, '-m', '']}, [Marks])",
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    return {name: set(own) for name, *own in found}


def chosen(expression: str) -> list[str]:
    """The tests that `-m` with this expression chooses."""
    asked = Expression.compile(expression)

    def among(own: set[str]) -> Any:
        return lambda name, **_: name in own

    return [name for name, own in marks().items() if asked.evaluate(among(own))]


def files_of(place: str) -> list[str]:
    """The files that a place stands for."""
    path = ROOT / place
    inside = sorted(path.rglob("test_*.py"))
    return [place] if path.is_file() else [str(file.relative_to(ROOT)) for file in inside]


def test_ci_runs_every_test_and_some_that_take_minutes():
    assert set(map(tuple, pytest_arguments("test-all"))) < set(map(tuple, runs()))
    assert any(arguments[:2] == ["-m", "faults"] for arguments in runs())
    assert "\npart make test-vllm\n" in CI, "what has an environment of its own"
    assert "\nif_time make test-avx2\n" in CI, "what computes, on a CPU that has less"


def test_the_first_tier_is_a_part_of_every_test():
    [first], [every] = pytest_arguments("test"), pytest_arguments("test-all")
    assert set(chosen(first[1])) < set(chosen(every[1])) == set(chosen("not proof and not faults"))
    assert len(chosen(first[1])) > len(chosen(every[1])) / 3


def test_a_test_that_is_gone_is_so_for_a_reason():
    gone = since.reasons()
    assert all(gone.values())
    assert since.named(set(marks()), gone) == []
    before = {"a::b", "a::c", "a::cd", "d::e", "d::f", "g::h[i]", "g::h[j]"}
    assert since.lost(before, {"a::b"}, ["a::c", "d::*", "g::*[i]"]) == ["a::cd", "g::h[j]"]


def test_nothing_in_the_first_tier_is_tried_again():
    [first] = pytest_arguments("test")
    assert chosen(f"({first[1]}) and flaky") == []


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
