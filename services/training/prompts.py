"""Prompts from a file: plain text, one prompt a line, or JSON lines.

JSON lines have `prompt`, `text` or `turns` (a list whose first entry is the prompt),
as evaluation sets have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.contract.errors import StartError

_NEEDED = 'a JSON object with "prompt", "text" or "turns"'


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a user says, and the line of the file it stands in, from 1."""

    line: int
    turns: tuple[str, ...]

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]


def read_prompts(path: Path, option: str = "--prompts") -> list[Prompt]:
    """All prompts of a file; StartError for one that cannot be read, is bad or has none."""
    lines = [(number, line.strip()) for number, line in enumerate(lines_of(path, option), 1)]
    filled = [(number, line) for number, line in lines if line]
    if not filled:
        raise StartError(f"{option}: {path} has no prompts")
    if path.suffix == ".jsonl" or filled[0][1].startswith("{"):
        return [Prompt(number, _turns(path, option, number, line)) for number, line in filled]
    return [Prompt(number, (line,)) for number, line in filled]


def lines_of(path: Path, option: str) -> list[str]:
    """The lines of a text file; StartError, naming the option, for one that is none."""
    # Only line feeds end a line: JSON may hold the other separators of Unicode.
    lines = text_of(path, option).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def text_of(path: Path, option: str, largest: int | None = None) -> str:
    """A text file of at most `largest` bytes; StartError, naming the option, for any other."""
    try:
        if largest is not None and path.stat().st_size > largest:
            raise StartError(f"{option}: {path} is larger than {largest >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StartError(f"{option}: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartError(f"{option}: {path} is no text in UTF-8") from None


def _turns(path: Path, option: str, number: int, line: str) -> tuple[str, ...]:
    try:
        entry = json.loads(line)
        turns = tuple(entry["turns"]) if "turns" in entry else (_single(entry),)
    except (ValueError, KeyError, TypeError):
        raise StartError(f"{option}: {path} line {number} is not {_NEEDED}") from None
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise StartError(f"{option}: {path} line {number} has no words")
    return turns


def _single(entry: dict[str, str]) -> str:
    return entry["prompt"] if "prompt" in entry else entry["text"]


def read_openings(path: Path) -> list[str]:
    """Beginnings of prompts, one a line; an empty line stands for none at all.

    Raises StartError for a file that cannot be read or is empty.
    """
    lines = lines_of(path, "--openings")
    if not lines:
        raise StartError(f"--openings: {path} is empty")
    return lines


def normalised(text: str) -> str:
    """A text in lower case, every run of white space one space."""
    return " ".join(text.casefold().split())


def overlapping(prompts: Sequence[str], excluded: Iterable[str]) -> list[int]:
    """Places of the prompts that contain an excluded one, whatever case and white space."""
    needles = {normalised(text) for text in excluded} - {""}
    return [
        place
        for place, prompt in enumerate(map(normalised, prompts))
        if any(needle in prompt for needle in needles)
    ]
