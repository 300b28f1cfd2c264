"""The prompts that every configuration answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from services.contract.errors import StartError

SPEC_BENCH = Path(__file__).parent / "data" / "spec_bench_dev.jsonl"
STRATUM = 3


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a set.

    `token_ids`: the prompt as the model wants it, where whoever answers takes token ids;
    empty: the server renders the text itself.
    """

    question_id: int
    category: str
    text: str
    token_ids: tuple[int, ...] = ()


def load_prompts(path: Path, count: int) -> list[BenchPrompt]:
    """The first `count` prompts, the categories in turn, so that any number mixes them.

    Raises StartError for a file that cannot be read or has too few.
    """
    prompts = read_prompts(path)
    if count > len(prompts):
        raise StartError(f"--set: {count} prompts are asked for, {path} has {len(prompts)}")
    return in_turn(prompts)[:count]


def load_set(path: Path, which: str) -> list[BenchPrompt]:
    """The prompts of `--set`: `all`, `stratified`, or a number of them.

    Raises StartError for another word, and for a file that cannot be read or has too few.
    """
    if which == "all":
        return in_turn(read_prompts(path))
    if which == "stratified":
        return stratified(read_prompts(path))
    if not which.isdecimal() or int(which) < 1:
        raise StartError(f"--set: {which!r} is not all, stratified or a number of prompts")
    return load_prompts(path, int(which))


def read_prompts(path: Path) -> list[BenchPrompt]:
    """All prompts of a file. Raises StartError when it cannot be read or has none."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"--prompts: {path} cannot be read: {error}") from None
    prompts = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise StartError(f"--prompts: {path} has no prompt")
    return prompts


def stratified(prompts: Iterable[BenchPrompt], each: int = STRATUM) -> list[BenchPrompt]:
    """`each` prompts of every category: always the same, evenly spread by question id."""
    chosen = [_spread(group, each) for group in _by_category(prompts).values()]
    return in_turn(chain.from_iterable(chosen))


def in_turn(prompts: Iterable[BenchPrompt]) -> list[BenchPrompt]:
    """One of each category, then the next of each."""
    rows = zip_longest(*_by_category(prompts).values())
    return [prompt for prompt in chain.from_iterable(rows) if prompt is not None]


def _by_category(prompts: Iterable[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    groups: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return groups


def _spread(group: Sequence[BenchPrompt], count: int) -> list[BenchPrompt]:
    ordered = sorted(group, key=lambda prompt: prompt.question_id)
    if len(ordered) <= count:
        return ordered
    return [ordered[place * len(ordered) // count] for place in range(count)]


def _parse(path: Path, number: int, line: str) -> BenchPrompt:
    try:
        entry = json.loads(line)
        return BenchPrompt(entry["question_id"], entry["category"], entry["turns"][0])
    except (ValueError, KeyError, TypeError, IndexError):
        needed = "a JSON object with question_id, category and turns"
        raise StartError(f"--prompts: {path} line {number} is not {needed}") from None
