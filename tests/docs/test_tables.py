"""Every table of a page is a table, and the index of the documentation names all of it."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, EVERY_PAGE, ROOT, prose

INDEX = DOCS / "README.md"
Table = list[list[str]]
"""Rows of cells, the heading first, without the line of dashes."""

_DIVIDER = re.compile(r"\|( *:?-+:? *\|)+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")


def cells(line: str) -> list[str]:
    """As GitHub parts a row: at every bar that no backslash hides, in code, too."""
    inner = line.strip().removeprefix("|")
    parts = [part.strip() for part in re.split(r"(?<!\\)\|", inner)]
    return parts[:-1] if parts[-1] == "" else parts


def runs(text: str) -> Iterator[list[tuple[int, str]]]:
    """Lines that follow each other and begin with a bar, with their numbers."""
    run: list[tuple[int, str]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("|"):
            run.append((number, line))
        elif run:
            yield run
            run = []


def mangled(text: str) -> list[str]:
    """What is no table though it begins like one, and rows of another length; each one line."""
    found = []
    for run in runs(text):
        number, heading = run[0]
        if len(run) < 3 or not _DIVIDER.fullmatch(run[1][1].strip()):
            found.append(f"line {number}: no heading, dashes and rows")
        width = len(cells(heading))
        found += [
            f"line {at}: {len(cells(line))} cells under {width} headings"
            for at, line in run[1:]
            if len(cells(line)) != width
        ]
        found += [f"line {at}: no bar at the end" for at, line in run if line.strip()[-1] != "|"]
    return found


def tables(text: str) -> list[Table]:
    return [[cells(line) for _, line in run if not _DIVIDER.match(line)] for run in runs(text)]


def links(row: Sequence[str]) -> list[str]:
    return [link for cell in row for link in _LINK.findall(cell)]


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_of_a_table_has_a_cell_under_each_heading(page: Path):
    assert mangled(prose(page.read_text("utf-8"))) == []


def test_the_index_begins_with_who_reads_and_names_pages_for_them():
    heading, *rows = tables(INDEX.read_text("utf-8"))[0]
    assert heading[0] == "you"
    assert [row[0] for row in rows if links(row[:1])] == []
    assert [row[0] for row in rows if len(links(row[1:2])) != 1] == []


def test_the_index_names_every_page_once():
    _, *rows = tables(INDEX.read_text("utf-8"))[0]
    named = [link for row in rows for link in links(row) if "/" not in link]
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md") if page != INDEX)


@pytest.mark.parametrize(
    "rows",
    [
        "| a | b |\n|---|---|\n| 1 | 2 | 3 |",
        "| a | b |\n|---|---|\n| 1 |",
        "| a | b |\n|---|---|\n| `1|2` | 3 |",
        "| a | b |\n| 1 | 2 |\n| 3 | 4 |",
        "| a | b |\n|---|\n| 1 | 2 |",
        "| a | b |\n|---|---|\n| 1 | 2",
    ],
)
def test_a_mangled_table_is_seen(rows: str):
    assert mangled(rows)
    assert mangled("| a | b |\n|---|---|\n| `1\\|2` | 3 |") == []
