"""The prompts that every configuration answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from services.common.errors import StartError

SPEC_BENCH = Path(__file__).parent / "data" / "spec_bench_dev.jsonl"


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a set."""

    question_id: int
    category: str
    text: str


def load_prompts(path: Path, count: int) -> list[BenchPrompt]:
    """The first `count` prompts, the categories in turn, so that any number mixes them.

    Raises StartError for a file that cannot be read or has too few.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--prompts: {path} cannot be read: {error}") from None
    prompts = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if count > len(prompts):
        raise StartError(f"--num-prompts: {count} are asked for, {path} has {len(prompts)}")
    return in_turn(prompts)[:count]


def in_turn(prompts: Iterable[BenchPrompt]) -> list[BenchPrompt]:
    """One of each category, then the next of each."""
    by_category: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rows = zip_longest(*by_category.values())
    return [prompt for prompt in chain.from_iterable(rows) if prompt is not None]


def _parse(path: Path, number: int, line: str) -> BenchPrompt:
    try:
        entry = json.loads(line)
        return BenchPrompt(entry["question_id"], entry["category"], entry["turns"][0])
    except (ValueError, KeyError, TypeError, IndexError):
        needed = "a JSON object with question_id, category and turns"
        raise StartError(f"--prompts: {path} line {number} is not {needed}") from None
