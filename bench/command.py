"""What the measuring commands `python -m bench.<name>` share."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import machine

SHARED = {
    "draft": "the draft model",
    "model": "the target",
    "dtype": "of the models",
    "prompts": "how many, of Spec-Bench",
    "tokens": "tokens of each answer",
}
"""Options that several commands have."""


def say(line: str) -> None:
    """Progress, apart from the results on stdout."""
    print(line, file=sys.stderr, flush=True)


def listed(kind: type[Any]) -> Callable[[str], list[Any]]:
    """What reads an option of several values, joined by commas."""

    def split(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return split


def measuring_parser(
    description: str | None, **defaults: str | int | None
) -> argparse.ArgumentParser:
    """A parser that shows `description` as it is written, with --threads and --json.

    `defaults`: of the options in `SHARED` that it has; None = it must be given. Where there
    are any, there is --model.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--json", type=Path, default=None, help="also write the report there")
    if defaults:
        defaults = {"model": "smollm2-135m-instruct", **defaults}
    for name, default in defaults.items():
        made.add_argument(
            f"--{name}",
            type=int if isinstance(default, int) else str,
            default=default,
            required=default is None,
            help=SHARED[name],
        )
    return made


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Measure as the command line asks, and print; also write JSON where it asks for that."""
    asked = parser.parse_args()
    about = {name: str(value) for name, value in vars(asked).items()}
    report = {"machine": machine(), "asked": about} | measure(asked)
    print(show(report))
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2))
    return report


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row; `columns` says what each has under that name, and in which format."""
    cells = [[format(row[name], kind) for name, kind in columns.items()] for row in rows]
    lines = [list(columns), *cells]
    width, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([first.ljust(width), *map(str.rjust, others, widths)]) for first, *others in lines
    )
