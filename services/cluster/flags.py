"""Command-line flags from an options class: one flag per field, nothing said twice.

An option comes from its flag, else from its variable (`PACELINE_<NAME>`), else from its default.
"""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from services.contract.errors import StartError
from services.runtime.options import PREFIX, Settings

Options = TypeVar("Options")

LONGEST_SHOWN = 200
"""Characters of a value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A field of an options class as a person types it. Without a description it is no flag."""

    kind: Any
    name: str
    field: FieldInfo

    def told(self, fact: str) -> Any:
        """What its declaration says beside the field."""
        extra: Any = self.field.json_schema_extra
        return extra[fact] if extra else ""

    @property
    def on(self) -> str:
        """The flag; of a word its name."""
        return self.name.upper() if self.told("word") else f"--{self._spelled}"

    @property
    def off(self) -> str:
        """The flag that turns a switch off: it has one where it can be on without a flag."""
        can_be_on = self.is_switch and (self.variable or self.field.default)
        return self.told("off") or (f"--no-{self._spelled}" if can_be_on else "")

    @property
    def variable(self) -> str:
        """The environment variable; empty: none."""
        there = self.told("variable") or issubclass(self.kind, Settings)
        return PREFIX + self._spelled.replace("-", "_").upper() if there else ""

    @property
    def members(self) -> tuple[Any, ...]:
        """The types that it allows, None left out."""
        annotation = self.field.annotation
        if get_origin(annotation) in (Union, UnionType):
            return tuple(member for member in get_args(annotation) if member is not NoneType)
        return (annotation,)

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return bool in self.members

    @property
    def is_list(self) -> bool:
        """Whether it has several values."""
        return get_origin(self.members[0]) in (list, tuple)

    @property
    def is_repeatable(self) -> bool:
        """Whether each of several values has a flag of its own, rather than commas between."""
        return self.is_list and not any(isinstance(o, BeforeValidator) for o in self.field.metadata)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it allows, if not any."""
        return tuple(
            word for one in self.members if get_origin(one) is Literal for word in get_args(one)
        )

    @property
    def given(self) -> Any:
        """What its variable says; None where that is not set. Empty, it counts for processes."""
        text = os.environ.get(self.variable)
        if not text and self.told("variable"):
            return None
        return text.split() if text and self.is_repeatable else text

    def add_to(self, section: Any) -> None:
        """Let argparse read it, and explain it in a section of `--help`."""
        how: dict[str, Any] = {"metavar": self._value}
        if self.told("word"):
            how = {"nargs": "?"}
        elif self.is_switch:
            how = {"nargs": 0, "action": _Switch}
        elif self.is_repeatable:
            how["action"] = "append"
        section.add_argument(*self.spelled, dest=self.on, help=self._explained, **how)

    @property
    def spelled(self) -> tuple[str, ...]:
        """The flags that it has; a word has none."""
        return () if self.told("word") else tuple(filter(None, (self.on, self.off)))

    @property
    def _explained(self) -> str:
        default = self.field.default
        told = default not in (PydanticUndefined, None, "", ()) and (self.off or not self.is_switch)
        parts = [
            self.field.description or "",
            f"(default: {default})" if told else "",
            "(needed)" if self.field.is_required() else "",
            f"[{self.variable}]" if self.variable else "",
        ]
        return " ".join(filter(None, parts))

    @property
    def _spelled(self) -> str:
        return self.told("flag") or self.name.replace("_", "-")

    @property
    def _value(self) -> str:
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        joined = self.is_list and not self.is_repeatable
        kind = get_args(self.members[0])[0] if self.is_repeatable else self.members[0]
        return self.told("shown") or ("A,B" if joined else kind.__name__.upper())


def flags_of(kind: Any) -> Iterator[Flag]:
    """The flags of an options class, and of those that are fields of it."""
    for name, field in kind.__pydantic_fields__.items():
        if _is_options(field):
            yield from flags_of(field.annotation)
        elif field.description is not None:
            yield Flag(kind, name, field)


def _is_options(field: FieldInfo) -> bool:
    return hasattr(field.annotation, "__pydantic_fields__")


class Flags:
    """The flags of a command that reads one or several options classes; they share flags."""

    def __init__(
        self, prog: str, summary: str, *kinds: type, helps: tuple[str, ...] = ("--help",)
    ) -> None:
        self._given: dict[str, Any] = {}
        self.sections: dict[str, Any] = {}
        self.known: dict[str, Flag] = {}
        self._parser = parser = ArgumentParser(
            prog, None, summary, argument_default=SUPPRESS, add_help=False, exit_on_error=False
        )
        for kind in kinds:
            title = "Flags"
            for flag in flags_of(kind):
                title = flag.field.title or title
                if self.known.setdefault(flag.on, flag) is flag:
                    if title not in self.sections:
                        self.sections[title] = parser.add_argument_group(title)
                    flag.add_to(self.sections[title])
        other = parser.add_argument_group("Other")
        other.add_argument(*helps, action="help", help="Show this message and exit.")
        words = [flag for flag in self.known.values() if flag.told("word")]
        named = "".join(f" {w.on}" if w.field.is_required() else f" [{w.on}]" for w in words)
        parser.usage = f"{prog}{named} [flags]"
        self.help, self._helps = parser.format_help, helps
        self._spelled = {one: flag for flag in self.known.values() for one in flag.spelled}

    def parse(self, arguments: Sequence[str]) -> None:
        """Read the command line. Raises StartError naming a flag that there is not.

        Exits by itself on `--help` (0).
        """
        try:
            given, left = self._parser.parse_known_args(list(self._joined(arguments)))
        except ArgumentError as error:
            flag = str(error.argument_name).partition("/")[0]
            needs = "needs a" if error.message.startswith("expected") else "takes no"
            raise StartError(f"{flag} {needs} value") from None
        for word in left:
            if word != "--":
                raise StartError(f"{word!r} is one word too many; see {self._parser.prog} --help")
        self._given = vars(given)

    def _joined(self, arguments: Sequence[str]) -> Iterator[str]:
        """Each flag in one word with its value, which may so begin with a dash."""
        following = iter(arguments)
        for word in following:
            on, equals, _ = word.partition("=")
            flag = self._spelled.get(on)
            if word in ("--", *self._helps):
                yield from (word, *following)
            elif flag is None and word.startswith("-") and word != "-":
                raise StartError(f"{on}: there is no such flag; see {self._parser.prog} --help")
            elif flag and not flag.is_switch:
                joined = word if equals else "=".join((word, *islice(following, 1)))
                if joined == f"{on}=--":  # argparse loses it
                    raise StartError(f"{on}: '--' is no value")
                yield joined
            else:
                yield word

    def read(self, kind: type[Options], **fixed: Any) -> Options:
        """The options of one class; `fixed` values are what they are.

        Raises StartError naming the flag or the variable of every value that is not allowed.
        """
        make: Any = kind
        fields = make.__pydantic_fields__
        nested = {name: one.annotation for name, one in fields.items() if _is_options(one)}
        flags = {flag.name: flag for flag in flags_of(kind) if flag.kind is kind}
        given = {name: self._given.get(flag.on, flag.given) for name, flag in flags.items()}
        own = {name: value for name, value in given.items() if value is not None}
        inner = {name: self.read(one) for name, one in nested.items()}
        try:
            options: Options = make(**{**own, **inner, **fixed})
        except ValidationError as error:
            told = (self._explain(flags, one) for one in error.errors())
            raise StartError("; ".join(told)) from None
        return options

    def _explain(self, flags: dict[str, Flag], detail: ErrorDetails) -> str:
        flag = flags.get(str(detail["loc"][0])) if detail["loc"] else None
        message = detail["msg"].removeprefix("Value error, ")
        if flag is None:
            return message
        if detail["type"] == "missing":
            return f"{flag.on} is needed" + (f" (or {flag.variable})" if flag.variable else "")
        source = flag.on if flag.on in self._given else flag.variable
        value = repr(detail["input"])
        shown = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
        return f"{source}: {shown} is not allowed: {message}"


def variable(kind: Any, name: str) -> str:
    """The environment variable of a field."""
    return Flag(kind, name, kind.__pydantic_fields__[name]).variable


class _Switch(Action):
    def __call__(self, _parser: Any, given: Any, _values: Any, flag: str | None = None) -> None:
        """On by its first flag, off by its second."""
        setattr(given, self.dest, flag == self.option_strings[0])


def complain(name: str, error: Exception, status: int) -> int:
    """One line on stderr; the status."""
    print(f"paceline {name}: {one_line(error)}", file=sys.stderr, flush=True)
    return status


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
