"""What a person can type: every command of `paceline`, its flags, and what each may be.

`read` takes it from the program, `held` from command_line.json beside this file, and
`python -m tests.console.command_line` writes the first over the second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import annotated_types
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from services.cluster import flags as typed
from services.console.main import COMMANDS, PROCESSES, flags_of

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
    found = {f"paceline {name}": dict(_flags(name)) for name in COMMANDS}
    found["paceline"] = {"--help": {"kind": "switch", "default": False}}
    return {command: dict(sorted(found[command].items())) for command in sorted(found)}


def _flags(name: str) -> Iterator[tuple[str, Flag]]:
    short = ["-h"] if name in PROCESSES else []
    yield "--help", {"kind": "switch"} | ({"short": short} if short else {}) | {"default": False}
    for flag in flags_of(name).known.values():
        yield flag.on, _told(flag, "joined by commas" if name in PROCESSES else "repeatable")


def _told(flag: typed.Flag, many: str) -> Flag:
    """What is known of a flag; what it has not is left out."""
    single = get_args(flag.members[0])[0] if flag.is_list else flag.members[0]
    # What is told as one text is one to a person, too.
    text = flag.is_list and isinstance(flag.field.default, str)
    known = {
        "kind": "choice" if flag.choices else "text" if text else _KINDS[single],
        "choices": list(flag.choices),
        "many": many if flag.is_list and not text else "",
        "off": flag.off,
        "env": flag.variable,
        "bounds": sorted(_bounds(flag.field), reverse=True),
        "required": flag.field.is_required(),
    }
    default = None if flag.is_repeatable else _plain(_default(flag.field))
    told = {fact: value for fact, value in known.items() if value}
    return told if flag.field.is_required() else {**told, "default": default}


def _bounds(field: FieldInfo) -> list[str]:
    found = [(one, *_BOUNDS[type(one)]) for one in field.metadata if type(one) in _BOUNDS]
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
