"""The file of `--config`: TOML whose keys are flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from services.cluster.gone import refuse_key
from services.contract.errors import StartError
from services.runtime.atomic_file import read_text

if TYPE_CHECKING:
    from services.cluster.flags import Flag

Given = dict[str, str | list[str]]
"""Values by flag, as a person types them; one whose flag is repeated has a list."""
LONGEST_SHOWN = 200
"""Characters of a key or a value that an error repeats."""


def load(path: Path) -> dict[str, Any]:
    """What a file says. Raises StartError for one that is no TOML, too large or not readable."""
    text = read_text("--config", path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartError(f"--config: {path} is no TOML: {error}") from None


def given(table: Mapping[str, Any], known: Mapping[str, Flag], where: str) -> Given:
    """The values of a table, by flag.

    `known`: flags by key. Raises StartError, which begins with `where`, for a key that is no flag
    and for a value that its flag does not allow.
    """
    found: Given = {}
    for key, value in table.items():
        name = key[:LONGEST_SHOWN].replace("_", "-")
        if name not in known:
            refuse_key(name, where)
            near = get_close_matches(name, known, n=1)
            meant = f"; is {near[0]} meant?" if near else ""
            raise StartError(f"{where}: there is no flag for {key[:LONGEST_SHOWN]}{meant}")
        found[known[name].on] = _typed(known[name], value, f"{where}: {name}")
    return found


def _typed(flag: Flag, value: Any, where: str) -> str | list[str]:
    """A value as it is typed: so it is read as one of a flag or a variable is."""
    values = value if isinstance(value, list) and flag.is_list else [value]
    if not all(isinstance(one, bool | int | float | str) for one in values):
        raise StartError(f"{where}: a {type(value).__name__} is no value of a flag")
    texts = [str(one) for one in values]
    typed = texts if flag.is_repeatable else ",".join(texts)
    kind: Any = Annotated[flag.field.annotation, flag.name, *flag.field.metadata]
    try:
        TypeAdapter(kind).validate_python(typed)
    except ValidationError as error:
        raise StartError(not_allowed(where, error.errors()[0])) from None
    return typed


def not_allowed(source: str, detail: ErrorDetails) -> str:
    """What is wrong with a value, and where it came from."""
    value, why = repr(detail["input"]), detail["msg"].removeprefix("Value error, ")
    shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
    return f"{source}: {shown} is not allowed: {why}"
