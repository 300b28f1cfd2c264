"""The lists of CONTRIBUTING.md name every file that has to be edited, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
SOURCES = ("services", "orchestrator", "protos")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
EXAMPLES = {
    "Add a drafting method": r"\"graph\"|\b(DRAFT_SOURCE_)?GRAPH\b",
    "Add a sampling parameter": r"\b(top_k|min_p|repetition_penalty)\b",
    "Add an engine": r"\b(target_engine|draft_engine)\b|\.synthetic\b(?!\.)",
}
"""How to find what an example of the same kind needed."""

KNOWN = {
    # The first version of stored sessions; written by `make protos`; what the semantic
    # conventions have an attribute for.
    "orchestrator/session/spec_record.py",
    "protos/paceline/_sampling.py",
    "orchestrator/recorder/attributes.py",
    "services/runtime/telemetry/names.py",
    # A count at or above the vocabulary is off.
    "orchestrator/frontdoor/requests/sampling.py",
}
"""Files that name numbers of today, and no later one."""

_PATH = re.compile(r"`([\w./-]+/[\w./-]+\.(?:py|proto|md|toml))`")


def listed(title: str) -> list[str]:
    """The files that the numbered steps below this heading name, in their order."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. .*(?:\n   .*)*", section, re.MULTILINE)
    return [path for step in steps for path in _PATH.findall(step)]


def mentioning(pattern: str) -> Iterator[str]:
    """The files of the sources in which the pattern is."""
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            written = path.suffix in (".py", ".proto") and not GENERATED.search(path.name)
            if written and re.search(pattern, path.read_text("utf-8")):
                yield str(path.relative_to(ROOT))


@pytest.mark.parametrize("title", EXAMPLES)
def test_every_file_of_a_list_is_there_and_is_named_once(title: str):
    files = listed(title)
    assert len(files) > 4
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("title", EXAMPLES)
def test_whatever_mentions_the_example_of_a_list_is_in_it(title: str):
    found = set(mentioning(EXAMPLES[title]))
    assert found
    assert sorted(found - set(listed(title)) - KNOWN) == []


def test_a_sampling_parameter_takes_four_files():
    """The wire, a declaration, and one of the two files with the arithmetic."""
    proto, told, declared, cut, adjusted = listed("Add a sampling parameter")
    cuts, counts = (set(mentioning(rf"\b{name}\b")) for name in ("min_p", "repetition_penalty"))
    assert cuts - KNOWN == {proto, told, declared, cut}
    assert counts - KNOWN == {proto, told, declared, adjusted}


def test_no_file_is_excused_that_need_not_be():
    assert set(mentioning(EXAMPLES["Add a sampling parameter"])) >= KNOWN


def test_a_file_that_mentions_a_sampling_parameter_is_seen():
    found = list(mentioning(EXAMPLES["Add a sampling parameter"]))
    assert "services/contract/sampling.py" in found
    assert not [path for path in found if GENERATED.search(Path(path).name)]
