"""The README begins with what a newcomer does first; the newest change is the built version."""

import re
import tomllib

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


# --- the changelog ------------------------------------------------------------------


CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE_TAG = re.compile(r"(?:newTag: |\bpaceline(?:-models)?:)(\d+\.\d+\.\d+)")


def test_the_newest_version_of_the_changelog_is_that_of_the_package():
    released = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)
    assert released[0] == VERSION


def test_every_version_says_what_a_user_gains_in_the_known_kinds():
    kinds = set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_manifests_and_pages_name_the_images_of_this_version():
    pages = [
        ROOT / "README.md",
        ROOT / "docs" / "operating.md",
        *ROOT.glob("k8s/**/*.md"),
        *ROOT.glob("k8s/**/*.yaml"),
    ]
    tags = {tag for page in pages for tag in IMAGE_TAG.findall(page.read_text("utf-8"))}
    assert tags == {VERSION}
