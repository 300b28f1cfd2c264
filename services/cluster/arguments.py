"""What the commands of long runs read from their command line."""

from __future__ import annotations

import re
import shlex
import sys

from services.contract.errors import StartError


def numbers_of(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from `0,1,5-7`; StartError, naming the option, for anything else."""
    numbers: list[int] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        run = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not run:
            raise StartError(f"{option}: {text!r} is no list like 0,1,28-29")
        numbers += run
    return tuple(numbers)


def fractions_of(option: str, text: str) -> tuple[float, ...]:
    """Numbers from `0,0.7,1`; StartError, naming the option, for anything else."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise StartError(f"{option}: {text!r} is no list of numbers like 0,0.7,1") from None


def within(option: str, value: float, low: float, high: float) -> float:
    """The value; StartError, naming the option and the range, for one beyond."""
    if not low <= value <= high:
        raise StartError(f"{option}: {value:g} is not between {low:g} and {high:g}")
    return value


def typed() -> str:
    """The command line, for a card."""
    return shlex.join(["paceline", *sys.argv[1:]])
