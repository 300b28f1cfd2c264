"""What a person can type: every command of `paceline`, its flags, and what each may be.

`read` takes it from the program, `held` from command_line.json beside this file, and
`python -m tests.console.command_line` writes the first over the second.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest.mock import patch

import annotated_types
import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode
from typer.testing import CliRunner

from services.cluster import process
from services.cluster.flags import Flags, variable
from services.console.main import app

FILE = Path(__file__).with_name("command_line.json")
REWRITE = "python -m tests.console.command_line"

Flag = dict[str, Any]
"""What is known of a flag: its `kind` and `default`, and what else it has of short, off
(the flag that turns it off), env, choices, bounds, many and required."""
Commands = dict[str, dict[str, Flag]]
"""Flags by command. Words without a flag are among them, in capitals."""

_KINDS: Mapping[type, str] = {
    bool: "switch",
    int: "integer",
    float: "number",
    str: "text",
    Path: "path",
    SecretStr: "secret",
}
_BOUNDS: Mapping[type, tuple[str, str]] = {
    annotated_types.Ge: ("ge", ">="),
    annotated_types.Gt: ("gt", ">"),
    annotated_types.Le: ("le", "<="),
    annotated_types.Lt: ("lt", "<"),
    annotated_types.MinLen: ("min_length", "length >="),
    annotated_types.MaxLen: ("max_length", "length <="),
}


def main() -> None:
    """Write what the program has to the file."""
    commands = read()
    FILE.write_text(as_text(commands), "utf-8")
    print(f"{FILE.name}: {len(commands)} commands, {sum(map(len, commands.values()))} flags")


def held() -> Commands:
    """What the file has."""
    commands: Commands = json.loads(FILE.read_text("utf-8"))
    return commands


def as_text(commands: Commands) -> str:
    """JSON, one flag a line."""
    told = [
        f"{json.dumps(command)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in flags.items())
        + "\n}"
        for command, flags in commands.items()
    ]
    return "{\n" + ",\n".join(told) + "\n}\n"


def read() -> Commands:
    """What the program has."""
    found = dict(_commands("paceline", typer.main.get_command(app)))
    return {command: dict(sorted(found[command].items())) for command in sorted(found)}


def differences(before: Commands, now: Commands) -> list[str]:
    """A sentence for each command or flag that is gone, new or another."""
    return [
        sentence
        for command in sorted({*before, *now})
        for sentence in _of_command(command, before.get(command), now.get(command))
    ]


def _of_command(
    command: str, before: dict[str, Flag] | None, now: dict[str, Flag] | None
) -> Iterator[str]:
    if before is None or now is None:
        yield f"`{command}` is {'new' if before is None else 'gone'}."
        return
    for name in sorted({*before, *now}):
        if name not in now:
            yield f"`{command}` has lost {name}."
        elif name not in before:
            yield f"`{command}` has {name}, which is new."
        else:
            yield from _of_flag(f"`{command} {name}`", before[name], now[name])


def _of_flag(flag: str, before: Flag, now: Flag) -> Iterator[str]:
    for fact in sorted({*before, *now}):
        old, new = (
            json.dumps(facts[fact]) if fact in facts else "absent" for facts in (before, now)
        )
        if old != new:
            yield f"{flag}: `{fact}` was {old} and is {new}."


def _commands(name: str, command: Any) -> Iterator[tuple[str, dict[str, Flag]]]:
    """A command and those below it."""
    takes_all = command.context_settings.get("allow_extra_args", False)
    yield name, {**dict(_typer_flags(command)), **(_own_flags(name) if takes_all else {})}
    for word, below in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {word}", below)


def _typer_flags(command: Any) -> Iterator[tuple[str, Flag]]:
    callback = command.callback
    hints = get_type_hints(inspect.unwrap(callback), include_extras=True) if callback else {}
    for parameter in command.get_params(typer.Context(command, **command.context_settings)):
        annotation, *told = _unwrapped(hints.get(parameter.name, bool))
        limits = [(">=", one.min) for one in told] + [("<=", one.max) for one in told]
        names = parameter.opts if parameter.opts[0].startswith("-") else [parameter.name.upper()]
        yield _flag(
            names,
            annotation,
            many="repeatable",
            off=next(iter(parameter.secondary_opts), None),
            env=parameter.envvar,
            bounds=[_bound(sign, limit) for sign, limit in limits if limit is not None],
            default=parameter.default if parameter.name in hints else False,
            required=parameter.required,
        )


def _own_flags(name: str) -> dict[str, Flag]:
    """The flags of a command that takes them from settings classes: what it builds, it is asked."""
    built: list[tuple[argparse.ArgumentParser, Sequence[type[BaseSettings]]]] = []

    class Seen(Flags):
        def __init__(self, prog: str, description: str, *kinds: type[BaseSettings]) -> None:
            super().__init__(prog, description, *kinds)
            built.append((self._parser, kinds))

    with patch.object(process, "Flags", Seen):
        asked = CliRunner().invoke(app, [*name.split()[1:], "--help"])
    assert asked.exit_code == 0, f"{name} --help: {asked.output}"
    ((parser, kinds),) = built
    return dict(_settings_flag(action, kinds) for action in parser._actions)


def _settings_flag(
    action: argparse.Action, kinds: Sequence[type[BaseSettings]]
) -> tuple[str, Flag]:
    name, strings = action.dest, list(action.option_strings)
    kind = next((kind for kind in kinds if name in kind.model_fields), None)
    if kind is None:
        assert action.nargs == 0, f"{strings} is of no settings class"
        return _flag(strings, bool, default=False)
    field = kind.model_fields[name]
    off = strings.pop() if isinstance(action, argparse.BooleanOptionalAction) else None
    return _flag(
        strings,
        field.annotation,
        many="joined by commas",
        off=off,
        env=variable(kind, name),
        bounds=_bounds(field),
        default=_default(field),
        required=field.is_required(),
    )


def _flag(
    names: Sequence[str],
    annotation: Any,
    *,
    many: str = "",
    default: Any = None,
    **facts: Any,
) -> tuple[str, Flag]:
    """A flag by its longest name; what it has not is left out."""
    members = _members(annotation)
    several = get_origin(members[0]) in (list, tuple)
    choices = [word for one in members if get_origin(one) is Literal for word in get_args(one)]
    single = get_args(members[0])[0] if several else members[0]
    name, *short = sorted(names, key=len, reverse=True)
    facts["bounds"] = sorted(facts.get("bounds", ()), reverse=True)
    known = {
        "kind": "choice" if choices else _KINDS[single],
        "choices": choices,
        "many": many if several else "",
        "short": short,
        **facts,
    }
    if not facts.get("required"):
        known["default"] = _plain(default)
    return name, {fact: value for fact, value in known.items() if value or fact == "default"}


def _unwrapped(annotation: Any) -> tuple[Any, ...]:
    """A type, and what Annotated says of it."""
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)


def _members(annotation: Any) -> tuple[Any, ...]:
    """What an annotation allows, None left out."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for member in get_args(annotation) if member is not NoneType)
    return (annotation,)


def _bounds(field: FieldInfo) -> list[str]:
    found = [(one, *_BOUNDS[type(one)]) for one in field.metadata if one is not NoDecode]
    return [_bound(sign, getattr(one, attribute)) for one, attribute, sign in found]


def _bound(sign: str, limit: float) -> str:
    return f"{sign} {int(limit) if limit == int(limit) else limit}"


def _default(field: FieldInfo) -> Any:
    if field.default_factory is None:
        return field.default
    drawn = field.get_default(call_default_factory=True, validated_data={})
    return re.sub(r"[0-9a-f]{8}$", "<random>", str(drawn))


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


if __name__ == "__main__":
    main()
