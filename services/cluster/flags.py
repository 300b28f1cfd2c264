"""Command-line flags from an options class: one flag per field, nothing said twice.

An option comes from its flag, else from its variable (`PACELINE_<NAME>`), else from its default.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
_INDENT = 24
_HELP = "Show this message and exit."


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

    def explained(self) -> tuple[str, str]:
        """Its line of `--help`."""
        default = self.field.default
        told = default not in (PydanticUndefined, None, "", ()) and (self.off or not self.is_switch)
        parts = [
            self.field.description or "",
            f"(default: {default})" if told else "",
            "(needed)" if self.field.is_required() else "",
            f"[{self.variable}]" if self.variable else "",
        ]
        alone = self.is_switch or self.told("word")
        head = ", ".join(filter(None, (self.on, self.off))) + ("" if alone else f" {self._value}")
        return head, " ".join(filter(None, parts))

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
        self._prog, self._summary, self._helps = prog, summary, helps
        self._given: dict[str, Any] = {}
        self.sections: dict[str, list[Flag]] = {}
        self.known: dict[str, Flag] = {}
        for kind in kinds:
            title = "Flags"
            for flag in flags_of(kind):
                title = flag.field.title or title
                if self.known.setdefault(flag.on, flag) is flag:
                    self.sections.setdefault(title, []).append(flag)
        self._words = [flag for flag in self.known.values() if flag.told("word")]
        self._off = {flag.off: flag for flag in self.known.values() if flag.off}

    def parse(self, arguments: Sequence[str]) -> None:
        """Read the command line. Raises StartError naming a flag that there is not.

        Exits by itself on `--help` (0).
        """
        following, left = iter(arguments), iter(self._words)
        for word in following:
            if word in self._helps:
                sys.stdout.write(self.help())
                raise SystemExit(0)
            if word == "--":
                for one in following:
                    self._take_word(one, next(left, None))
            elif word.startswith("-") and word != "-":
                self._take_flag(word, following)
            else:
                self._take_word(word, next(left, None))

    def _take_word(self, word: str, flag: Flag | None) -> None:
        if flag is None:
            raise StartError(f"{word!r} is one word too many; see {self._prog} --help")
        self._given[flag.on] = word

    def _take_flag(self, word: str, following: Iterator[str]) -> None:
        spelled, equals, value = word.partition("=")
        flag = self._off.get(spelled) or self.known.get(spelled)
        if flag is None:
            raise StartError(f"{spelled}: there is no such flag; see {self._prog} --help")
        if flag.is_switch:
            if equals:
                raise StartError(f"{spelled} takes no value")
            self._given[flag.on] = spelled != flag.off
            return
        given = value if equals else next(following, None)
        if given is None:
            raise StartError(f"{spelled} needs a value")
        before = self._given.get(flag.on, [])
        self._given[flag.on] = [*before, given] if flag.is_repeatable else given

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

    def help(self) -> str:
        """What `--help` prints."""
        words = "".join(
            f" {flag.on}" if flag.field.is_required() else f" [{flag.on}]" for flag in self._words
        )
        lines = [f"usage: {self._prog}{words} [flags]", "", *_wrapped(self._summary, 0)]
        for title, flags in self.sections.items():
            lines += ["", f"{title}:", *_rows(flag.explained() for flag in flags)]
        lines += ["", "Other:", *_rows([(", ".join(self._helps), _HELP)]), ""]
        return "\n".join(lines)


def variable(kind: Any, name: str) -> str:
    """The environment variable of a field."""
    return Flag(kind, name, kind.__pydantic_fields__[name]).variable


def _rows(told: Any) -> Iterator[str]:
    """Lines of flags, each with its text beside it, or below where the flag is long."""
    for head, text in told:
        first, *more = _wrapped(text, _INDENT)
        if len(head) > _INDENT - 4:
            yield from (f"  {head}", first)
        else:
            yield f"  {head}".ljust(_INDENT) + first.lstrip()
        yield from more


def _wrapped(text: str, indent: int) -> list[str]:
    space = " " * indent
    width = max(40, shutil.get_terminal_size().columns - 2)
    return textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )
