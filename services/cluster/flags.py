"""Command-line flags from a settings class: one flag per field, nothing said twice.

A setting comes from its flag, else from `PACELINE_<NAME>`, else from its default.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Container, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined
from pydantic_settings import BaseSettings

from services.contract.errors import StartError

Settings = TypeVar("Settings", bound=BaseSettings)

LONGEST_SHOWN = 200
"""Characters of a value that an error repeats."""


class Flags:
    """The flags of a command that reads one or several settings classes."""

    def __init__(self, prog: str, description: str, *kinds: type[BaseSettings]) -> None:
        self._parser = argparse.ArgumentParser(
            prog=prog,
            description=description,
            usage=f"{prog} [flags]",
            epilog="Every flag can be given as the environment variable named beside it.",
            allow_abbrev=False,
        )
        self._given: dict[str, Any] = {}
        known = _fields(kinds)
        for title, names in _sections(kinds, known).items():
            group = self._parser.add_argument_group(title)
            for name in names:
                kind, field = known[name]
                _add_flag(group, name, field, variable(kind, name))

    def parse(self, arguments: Sequence[str]) -> None:
        """Read the command line; exits by itself on `--help` (0) and an unknown flag (2)."""
        parsed = vars(self._parser.parse_args(list(arguments)))
        self._given = {name: value for name, value in parsed.items() if value is not None}

    def read(self, kind: type[Settings], **fixed: Any) -> Settings:
        """The settings of one class; `fixed` values are what they are.

        Raises StartError naming the flag or the variable of every value that is not allowed.
        """
        own = {name: value for name, value in self._given.items() if name in kind.model_fields}
        try:
            return kind(**{**own, **fixed})
        except ValidationError as error:
            raise StartError("; ".join(_explain(kind, one) for one in error.errors())) from None

    def help(self) -> str:
        """What `--help` prints."""
        return self._parser.format_help()


def flag(name: str) -> str:
    """The flag of a field."""
    return "--" + name.replace("_", "-")


def variable(kind: type[BaseSettings], name: str) -> str:
    """The environment variable of a field."""
    return (kind.model_config.get("env_prefix", "") + name).upper()


def _fields(
    kinds: Sequence[type[BaseSettings]],
) -> dict[str, tuple[type[BaseSettings], FieldInfo]]:
    """Every field by name; what two classes share is one flag."""
    named: dict[str, tuple[type[BaseSettings], FieldInfo]] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            named.setdefault(name, (kind, field))
    return named


def _sections(
    kinds: Sequence[type[BaseSettings]], known: Container[str]
) -> dict[str, dict[str, None]]:
    """The fields by the sections that classes declare as `SECTIONS`, what has none at the end."""
    named: dict[str, dict[str, None]] = {}
    listed: set[str] = set()
    for base in (base for kind in kinds for base in kind.__mro__):
        for title, names in vars(base).get("SECTIONS", {}).items():
            fresh = [name for name in names if name in known and name not in listed]
            named.setdefault(title, {}).update(dict.fromkeys(fresh))
            listed.update(fresh)
    rest = [name for kind in kinds for name in kind.model_fields if name not in listed]
    named["other"] = dict.fromkeys(rest)
    return {title: names for title, names in named.items() if names}


def _add_flag(
    parser: argparse._ArgumentGroup, name: str, field: FieldInfo, variable_name: str
) -> None:
    options: dict[str, Any] = {"dest": name, "default": None, "help": _help(field, variable_name)}
    members = _members(field.annotation)
    if bool in members:
        parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, **options)
    elif any(get_origin(member) in (list, tuple, set, frozenset) for member in members):
        options |= {"type": _comma_list, "metavar": "A,B"}
        parser.add_argument(flag(name), **options)
    else:
        parser.add_argument(flag(name), metavar=_metavar(members), **options)


def _members(annotation: Any) -> tuple[Any, ...]:
    """What an annotation allows, None left out."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for member in get_args(annotation) if member is not NoneType)
    return (annotation,)


def _metavar(members: Sequence[Any]) -> str:
    if all(get_origin(member) is Literal for member in members):
        return "{" + ",".join(str(value) for member in members for value in get_args(member)) + "}"
    return str(getattr(members[0], "__name__", "value")).upper()


def _comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _help(field: FieldInfo, variable_name: str) -> str:
    default = field.default
    shown = default not in (PydanticUndefined, None, "", ())
    parts = [
        field.description or "",
        f"(default: {default})" if shown else "",
        f"[{variable_name}]",
    ]
    return " ".join(part for part in parts if part).replace("%", "%%")


def _explain(kind: type[BaseSettings], detail: ErrorDetails) -> str:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    message = detail["msg"].removeprefix("Value error, ")
    if name not in kind.model_fields:
        return message
    if detail["type"] == "missing":
        return f"{flag(name)} is needed (or {variable(kind, name)})"
    source = variable(kind, name) if variable(kind, name) in os.environ else flag(name)
    value = repr(detail["input"])
    shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
    return f"{source}: {shown} is not allowed: {message}"
