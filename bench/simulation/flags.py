"""What the simulator's commands share: numbers from flags, and tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table

from services.cluster.arguments import fractions_of, within
from services.contract.errors import StartError


def numbers(flag: str, text: str, low: float, high: float) -> tuple[float, ...]:
    """At least one number within the bounds, from `A,B`. Raises StartError for anything else."""
    found = fractions_of(flag, text)
    if not found:
        raise StartError(f"{flag}: no number given, between {low:g} and {high:g}")
    return tuple(within(flag, one, low, high) for one in found)


def add_numbers(
    made: argparse._ActionsContainer,
    flag: str,
    values: Sequence[float],
    help_text: str,
    low: float,
    high: float,
) -> None:
    """A flag that `numbers` reads."""
    text = ",".join(f"{value:g}" for value in values)
    help_text = f"{help_text}; left out: {text}"
    made.add_argument(
        flag,
        type=lambda text: numbers(flag, text, low, high),
        default=tuple(values),
        metavar="A,B",
        help=help_text,
    )


def add_number(
    made: argparse._ActionsContainer,
    flag: str,
    value: float,
    help_text: str,
    low: float,
    high: float,
    dest: str | None = None,
) -> None:
    """A flag of one number of the value's type within the bounds, or StartError is raised."""

    def number(text: str) -> float:
        return within(flag, type(value)(text), low, high)

    help_text = f"{help_text}; left out: {value:g}"
    made.add_argument(flag, type=number, default=value, help=help_text, dest=dest)


def bare_table(columns: Sequence[str]) -> Table:
    """A table of numbers without lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table
