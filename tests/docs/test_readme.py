"""The README stays two screens, and begins with what a newcomer does first."""

import re

from tests.docs.pages import ROOT

README = (ROOT / "README.md").read_text("utf-8")
MOST_BYTES = 9_000
FIRST_SCREEN = 25
"""Lines."""


def test_the_readme_is_short():
    assert len(README.encode()) <= MOST_BYTES


def test_the_first_screen_says_how_to_see_it_work_and_how_to_test_it():
    first = "\n".join(README.splitlines()[:FIRST_SCREEN])
    assert "make demo" in first
    assert "make test" in first


def test_its_figure_stands_in_the_page_of_figures_too():
    [said] = re.findall(r"\*\*(\d\.\d\d) times", README)
    assert f"**{said}**" in (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
