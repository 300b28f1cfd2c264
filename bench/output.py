"""Where a bench's results go: progress to stderr, tables to stdout, everything to a JSON file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from services.cluster.figures import Measured

RESULTS = Path("bench", "results")
"""In the current folder."""
WIDTH = 140

Row = tuple[str, list[str]]


def say(line: str, program: str = "paceline bench") -> None:
    """Progress of a program, apart from the results on stdout."""
    print(f"{program}: {line}", file=sys.stderr, flush=True)


def table_console(least: int = WIDTH) -> Console:
    """For tables: as wide as the terminal.

    A file has no width, and a table folded to 80 columns is hard to read: `least` there.
    """
    return Console(highlight=False, width=None if sys.stdout.isatty() else least)


def table(title: str, columns: Sequence[str], content: Sequence[Row]) -> Table:
    """A column for each way to decode, a row for each figure."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(title)
    for column in columns:
        made.add_column(column, justify="right")
    for name, cells in content:
        made.add_row(name, *cells)
    return made


def shown(figure: object | None) -> str:
    """A figure, or a dash where there is none."""
    return "–" if figure is None else str(figure)


def result_file(kind: str) -> Path:
    """A new one in bench/results."""
    return RESULTS / f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"


def write_content(path: Path, content: Mapping[str, object]) -> None:
    """As JSON, in a folder that is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def publish(
    brief: Mapping[str, object],
    trials: Sequence[Mapping[str, object]],
    path: Path,
    summary: Path | None,
    draw: Callable[[], Iterable[Path]] = tuple,
) -> None:
    """Everything to `path`; without the trials, small enough to be kept, to `summary`.

    `draw` draws beside it. Says what is where, and what cannot be written.
    """
    try:
        write_content(path, {**brief, "trials": list(trials)})
        print(f"written to {path}")
        if summary is not None:
            path = summary
            write_content(path, brief)
            print(f"without the trials written to {path}")
        for plot in draw():
            print(f"drawn in {plot}")
    except OSError as error:
        say(f"{path} cannot be written: {error.strerror}")


def answer_content(result: Measured) -> dict[str, object]:
    """An answer without its text: token counts, times and rounds are what counts."""
    return {
        "tokens": result.tokens,
        "first_token_s": result.first_token_s,
        "total_s": result.total_s,
        "arrivals": result.arrivals,
        "rounds": [asdict(stats) for stats in result.rounds],
    }
