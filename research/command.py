"""What the measuring commands `python -m research.<name>` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def measuring_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows `description` as it is written, with --threads and --json."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--json", type=Path, default=None, help="also write the report there")
    return made


def run(
    arguments: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    show: Callable[[dict[str, Any]], str],
) -> dict[str, Any]:
    """Measure and print; also write JSON where it was asked for. The report."""
    report = measure(arguments)
    print(show(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    return report
