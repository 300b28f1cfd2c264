"""Every link from the documentation to this repository leads somewhere."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import EVERY_PAGE, ROOT, prose

_LINK = re.compile(r"(?:\]\(|src=\"|srcset=\")([^)\s\"]+)")
_PATH = re.compile(r"`((?:bench|docs|examples|k8s|orchestrator|protos|services|tests)/[\w./*-]+)`")
_MADE = ("bench/results/",)
"""Folders that a command makes."""


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of the headings of a page, made as GitHub makes them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text("utf-8")), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.add(f"{words}-{found[words]}" if found[words] else words)
        found[words] += 1
    return frozenset(names)


def broken(page: Path, text: str) -> list[str]:
    """The links of this text that lead nowhere."""
    local = [link for link in _LINK.findall(prose(text)) if "://" not in link]
    return [link for link in local if not _leads(page, *link.partition("#"))]


def _leads(page: Path, path: str, mark: str, anchor: str) -> bool:
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not mark or anchor in anchors(target))


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path):
    assert broken(page, page.read_text("utf-8")) == []


def absent(text: str) -> list[str]:
    """The files and folders that this text names and the repository has not."""
    return [path for path in _PATH.findall(text) if path not in _MADE and not _is_there(path)]


def _is_there(path: str) -> bool:
    return any(ROOT.glob(path)) or (ROOT / f"{path}.py").exists()


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page: Path):
    assert absent(prose(page.read_text("utf-8"))) == []


def test_a_path_that_is_not_there_is_seen():
    assert absent("`tests/absent.py`, `tests/docs`, `tests/docs/*.py`") == ["tests/absent.py"]


@pytest.mark.parametrize(
    "link", ["[a](absent.md)", "[a](README.md#no-such-heading)", "[a](#no-such-heading)"]
)
def test_a_link_that_leads_nowhere_is_seen(link: str):
    assert len(broken(ROOT / "README.md", f"# A page\n\nSee {link}.")) == 1
