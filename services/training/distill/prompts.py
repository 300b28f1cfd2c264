"""Openings from a file, and the prompts that must never be trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from services.contract.errors import StartError
from services.training.prompts import Prompt, lines_of


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


def refuse_excluded(path: Path, prompts: Iterable[Prompt], excluded: Iterable[str]) -> None:
    """Raise StartError, with the line, for a prompt that is an excluded one."""
    forbidden = {normalised(text) for text in excluded}
    for prompt in prompts:
        if normalised(prompt.text) in forbidden:
            raise StartError(f"--prompts: {path} line {prompt.line} is a prompt of --exclude")
