"""Command-line flags from an options class: one flag per field, nothing said twice.

An option comes from its flag, else from its variable (`PACELINE_<NAME>`), else from the file of
`--config`, else from its default. click reads the words, pydantic the values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from services.cluster.config import Given, given, load, not_allowed
from services.cluster.gone import refuse_flag, refuse_variables
from services.contract.errors import StartError
from services.runtime.options import PREFIX, Settings, option, options

Options = TypeVar("Options")


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
    def key(self) -> str:
        """Its name in a file."""
        return self.told("flag") or self.name.replace("_", "-")

    @property
    def dest(self) -> str:
        """Its name among the words that click read."""
        return self.key.replace("-", "_")

    @property
    def on(self) -> str:
        """The flag; of a word its name."""
        return self.name.upper() if self.told("word") else f"--{self.key}"

    @property
    def off(self) -> str:
        """The flag that turns a switch off: it has one where it can be on without a flag."""
        can_be_on = self.is_switch and (self.variable or self.field.default)
        return self.told("off") or (f"--no-{self.key}" if can_be_on else "")

    @property
    def variable(self) -> str:
        """The environment variable; empty: none."""
        there = self.told("variable") or issubclass(self.kind, Settings)
        return PREFIX + self.key.replace("-", "_").upper() if there else ""

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

    @property
    def spelled(self) -> tuple[str, ...]:
        """The flags that it has; a word has none."""
        return () if self.told("word") else tuple(filter(None, (self.on, self.off)))

    @property
    def parameter(self) -> click.Parameter:
        """What click reads it with."""
        if self.told("word"):
            return click.Argument([self.dest], required=False)
        return click.Option(
            [self.dest, "/".join(self.spelled)],
            is_flag=self.is_switch,
            multiple=self.is_repeatable,
            default=None,
        )

    @property
    def explained(self) -> tuple[str, str]:
        """How it is typed, and what `--help` says of it."""
        default = self.field.default
        told = default not in (PydanticUndefined, None, "", ()) and (self.off or not self.is_switch)
        parts = [
            self.field.description or "",
            f"(default: {default})" if told else "",
            "(needed)" if self.field.is_required() else "",
            f"[{self.variable}]" if self.variable else "",
        ]
        value = "" if self.is_switch or self.told("word") else f" {self._value}"
        typed = ", ".join(self.spelled) or self.on
        return typed + value, " ".join(filter(None, parts))

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


@options
class ConfigOptions:
    """The file."""

    config: Path | None = option(
        "TOML file with flags as keys, for what neither a flag nor a variable says; in that of up "
        "[verifier], [drafter] and [orchestrator] have flags of these processes.",
        None,
        section="File",
    )


class _Command(click.Command):
    """The words of a command, with its flags by section."""

    def __init__(
        self, summary: str, titles: Mapping[str, Sequence[Flag]], helps: tuple[str, ...]
    ) -> None:
        words = [flag.parameter for flags in titles.values() for flag in flags]
        named = {"help_option_names": [*helps]}
        super().__init__(None, named, params=words, help=summary, options_metavar="[flags]")
        self._titles = titles
        self._other = (", ".join(helps), "Show this message and exit.")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Every section of the help."""
        rows = {title: [one.explained for one in flags] for title, flags in self._titles.items()}
        for title, said in (rows | {"Other": [self._other]}).items():
            with formatter.section(title):
                formatter.write_dl(said)


class Flags:
    """The flags of a command that reads one or several options classes; they share flags.

    `roles`: of the sections of its file, by name; None: it takes no file.
    """

    def __init__(
        self,
        prog: str,
        summary: str,
        *kinds: type,
        helps: tuple[str, ...] = ("--help",),
        roles: Mapping[str, Callable[[], Flags]] | None = None,
    ) -> None:
        self._prog, self._roles = prog, roles or {}
        # It runs processes, or is one.
        self._runs = roles is not None
        self._given: dict[str, Any] = {}
        self._file: Given = {}
        self.sections: dict[str, dict[str, str]] = {}
        """Variables of each role, as the file has them."""
        self.known: dict[str, Flag] = {}
        self.titles: dict[str, list[Flag]] = {}
        for kind in kinds if roles is None else (*kinds, ConfigOptions):
            title = "Flags"
            for flag in flags_of(kind):
                title = flag.field.title or title
                if self.known.setdefault(flag.on, flag) is flag:
                    self.titles.setdefault(title, []).append(flag)
        flags = [flag for flag in self.known.values() if flag.spelled]
        self.keys = {flag.key: flag for flag in flags if flag.key != "config"}
        self._command = _Command(summary, self.titles, helps)

    def parse(self, arguments: Sequence[str]) -> None:
        """Read the command line, and the file that it names.

        Raises StartError naming a flag that there is not. Exits by itself on `--help` (0).
        """
        if self._runs:
            refuse_variables()
        try:
            words = self._command.make_context(self._prog, list(arguments)).params
        except click.exceptions.Exit as end:
            raise SystemExit(end.exit_code) from None
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption):
                refuse_flag(error.option_name)
            why = error.format_message().rstrip(".")
            raise StartError(f"{why}; see {self._prog} --help") from None
        typed = {flag.on: words[flag.dest] for flag in self.known.values()}
        self._given = {on: value for on, value in typed.items() if value not in (None, ())}
        if "--config" in self._given:
            self._read_file(Path(self._given["--config"]))

    def _read_file(self, path: Path) -> None:
        where, content = f"--config: {path}", load(path)
        for name in self._roles.keys() & content.keys():
            self.sections[name] = self._section(name, content.pop(name), f"{where}: [{name}]")
        self._file = given(content, self.keys, where)

    def _section(self, name: str, table: Any, where: str) -> dict[str, str]:
        """What the file says of a role, by variable; none of it is a flag of this command."""
        role = self._roles[name]()
        told = given(table if isinstance(table, dict) else {name: table}, role.keys, where)
        for on in told.keys() & self.known.keys():
            raise StartError(f"{where}: {on} is a flag of {self._prog}: give it above the sections")
        return {role.known[on].variable: str(value) for on, value in told.items()}

    def read(self, kind: type[Options], **fixed: Any) -> Options:
        """The options of one class; `fixed` values are what they are.

        Raises StartError naming the flag or the variable of every value that is not allowed.
        """
        make: Any = kind
        fields = make.__pydantic_fields__.items()
        nested = {name: self.read(one.annotation) for name, one in fields if _is_options(one)}
        flags = {flag.name: flag for flag in flags_of(kind) if flag.kind is kind}
        found = {name: self._value(flag) for name, flag in flags.items()}
        own = {name: value for name, value in found.items() if value is not None}
        try:
            options: Options = make(**{**own, **nested, **fixed})
        except ValidationError as error:
            told = (self._explain(flags, one) for one in error.errors())
            raise StartError("; ".join(told)) from None
        return options

    def _value(self, flag: Flag) -> Any:
        """As it was given; None: it was not."""
        if flag.on in self._given:
            return self._given[flag.on]
        return self._file.get(flag.on) if flag.given is None else flag.given

    def _explain(self, flags: dict[str, Flag], detail: ErrorDetails) -> str:
        flag = flags.get(str(detail["loc"][0])) if detail["loc"] else None
        if flag is None:
            return detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "missing":
            return f"{flag.on} is needed" + (f" (or {flag.variable})" if flag.variable else "")
        return not_allowed(flag.on if flag.on in self._given else flag.variable, detail)


def complain(name: str, error: Exception, status: int) -> int:
    """One line on stderr; the status."""
    print(f"paceline {name}: {one_line(error)}", file=sys.stderr, flush=True)
    return status


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())
