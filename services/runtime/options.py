"""What a person can type: options classes, each field of which is one flag, declared once."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

PREFIX = "PACELINE_"

T = TypeVar("T")


class Settings(BaseModel):
    """The options of a process: every one of them has a variable."""

    model_config = ConfigDict(frozen=True, validate_default=True)


@dataclass_transform(frozen_default=True)
def options(kind: type[T]) -> type[T]:
    """The options of a command, as a dataclass: only what is declared as `option` is a flag."""
    made: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(kind)
    return made  # type: ignore[no-any-return]


def option(
    text: str,
    default: Any = ...,
    *,
    section: str | None = None,
    flag: str = "",
    off: str = "",
    shown: str = "",
    variable: bool = False,
    word: bool = False,
    **rules: Any,
) -> Any:
    """A field of an options class, with what `--help` says of it; without a default it is needed.

    `section`: of `--help`, begins with it. `flag`: instead of the field's name, and `off` what
    turns it off. `shown`: what stands for its value. `variable`: `PACELINE_<FLAG>` sets it, too.
    `word`: it has no flag. `rules`: as pydantic's fields have them.
    """
    typed: Any = {"flag": flag, "off": off, "shown": shown, "variable": variable, "word": word}
    return Field(
        default,
        title=section,
        description=text,
        json_schema_extra=typed,
        validate_default=True,
        **rules,
    )


def typed() -> str:
    """The command line, for a card."""
    return shlex.join(["paceline", *sys.argv[1:]])


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from `0,1,5-7`; ValueError for anything else."""
    found: list[int] = []
    for part in words(text):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        run = range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else ()
        if not run:
            raise ValueError("no list like 0,1,28-29")
        found += run
    return tuple(found)


def fractions(text: str) -> tuple[float, ...]:
    """Numbers from `0,0.7,1`; ValueError for anything else."""
    try:
        return tuple(float(part) for part in words(text))
    except ValueError:
        raise ValueError("no list of numbers like 0,0.7,1") from None


def words(text: str) -> tuple[str, ...]:
    """What commas join."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _read(parse: Callable[[str], object]) -> BeforeValidator:
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


Numbers = Annotated[tuple[int, ...], _read(numbers)]
Fractions = Annotated[tuple[float, ...], _read(fractions)]
Words = Annotated[tuple[str, ...], _read(words)]
"""A list that is typed as one word, joined by commas."""
