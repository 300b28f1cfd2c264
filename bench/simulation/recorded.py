"""Texts that a target wrote, in token ids: what sessions of the default trees are simulated on.

A file of JSON lines, one text each: `{"category": "qa", "prompt": [1, 2], "answer": [3, 4]}`.
The answer is what the target says greedily after the prompt; `python -m research.answered` writes
such a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.contract.errors import StartError

FLAG = "--recorded"
LARGEST_ID = (1 << 31) - 1
NEEDED = "a JSON object with category, prompt and answer, the latter two lists of token ids"


@dataclass(frozen=True, slots=True)
class RecordedText:
    """A prompt and the target's greedy answer, each of at least one token."""

    category: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_texts(path: Path, vocab_size: int = 0) -> tuple[RecordedText, ...]:
    """The texts of a file, at least one.

    `vocab_size`: ids are below; 0 = any. Raises StartError, one line, for a file that cannot
    be read, has no text, or has one that is none.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{FLAG}: {path} cannot be read: {error}") from None
    texts = tuple(
        _parse(f"{path} line {number}", line, vocab_size)
        for number, line in enumerate(lines, 1)
        if line.strip()
    )
    if not texts:
        raise StartError(f"{FLAG}: {path} has no text")
    return texts


def write_texts(path: Path, texts: Iterable[RecordedText]) -> None:
    """A file that `read_texts` reads. Raises StartError when it cannot be written."""
    try:
        path.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts))
    except OSError as error:
        raise StartError(f"{path} cannot be written: {error.strerror}") from None


def _parse(place: str, line: str, vocab_size: int) -> RecordedText:
    try:
        entry = json.loads(line)
        category, prompt, answer = entry["category"], entry["prompt"], entry["answer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StartError(f"{FLAG}: {place} is not {NEEDED}") from None
    if not isinstance(category, str) or not _are_ids(prompt) or not _are_ids(answer):
        raise StartError(f"{FLAG}: {place} is not {NEEDED}")
    if not prompt or not answer:
        raise StartError(f"{FLAG}: {place} needs a token of the prompt and one of the answer")
    if vocab_size and (largest := max(*prompt, *answer)) >= vocab_size:
        raise StartError(f"{FLAG}: {place}: token {largest} is beyond a vocabulary of {vocab_size}")
    return RecordedText(category, tuple(prompt), tuple(answer))


def _are_ids(values: Any) -> bool:
    return isinstance(values, Sequence) and all(
        type(value) is int and 0 <= value <= LARGEST_ID for value in values
    )
