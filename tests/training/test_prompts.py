"""Prompt files, and prompts that must not be trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.prompts import SPEC_BENCH
from services.training.prompts import normalised, overlapping, read_openings, read_prompts

ROOT = Path(__file__).parents[2]
SHIPPED = [
    path
    for folder in ("models", "services")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".json", ".jsonl", ".md", ".svg", ".txt") and path.is_file()
]


@pytest.mark.parametrize("name", ["p.jsonl", "p.txt"])
def test_json_lines_may_name_the_prompt_in_three_ways(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"prompt": "a b"}\n\n{"text": "c\u2028d"}\n{"turns": ["e", "f"]}\n')
    prompts = read_prompts(path)
    assert [prompt.text for prompt in prompts] == ["a b", "c\u2028d", "e"]
    assert [prompt.line for prompt in prompts] == [1, 3, 4]
    assert prompts[2].turns == ("e", "f")


def test_plain_text_has_a_prompt_on_each_line(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("one two\n\n  three \r\n")
    assert [(p.line, p.text) for p in read_prompts(path)] == [(1, "one two"), (3, "three")]


def test_an_empty_line_is_an_opening_of_its_own(tmp_path):
    path = tmp_path / "openings.txt"
    path.write_text("How do I\n\nWrite \n")
    assert read_openings(path) == ["How do I", "", "Write "]


def test_an_excluded_prompt_is_found_inside_another_whatever_its_case_and_spaces():
    prompts = ["Please say: why IS\n the sky  blue?", "Why is the sea blue?", ""]
    assert overlapping(prompts, ["Why is the sky blue?", ""]) == [0]
    assert overlapping(prompts, ["why is the"]) == [0, 1]
    assert overlapping(prompts, []) == []


def evaluated():
    return [turn for prompt in read_prompts(SPEC_BENCH) for turn in prompt.turns]


def test_a_leak_of_an_evaluation_prompt_would_be_found():
    leaked = f"openings: {evaluated()[100].upper()}"
    assert overlapping(["nothing", leaked], evaluated()) == [1]


@pytest.mark.skipif(not SHIPPED, reason="no drafter is shipped")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_shipped_holds_a_prompt_of_the_evaluation_set(path):
    # JSON would hide line breaks and quotes from the comparison.
    text = path.read_text().replace("\\n", " ").replace('\\"', '"')
    assert [line for line in evaluated() if normalised(line) in normalised(text)] == []
