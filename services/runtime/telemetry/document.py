"""Writes the tables of docs/telemetry.md: `python -m services.runtime.telemetry.document`.

What stands before them is written by hand. With `--check` it writes nothing and fails if the
tables are not what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from services.runtime.telemetry import names

PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"

_FIRST = "## Spans\n"
"""The heading of the first table."""


def page(written: str) -> str:
    """The page as it is written, with the tables of today."""
    meaning = "what it means"
    spans = (
        (f"`{span.name}`", span.process, span.kind, span.parent, span.help)
        for span in names.every_span()
    )
    metrics = (
        (
            f"`{metric.name}`",
            f"`{metric.prometheus}`",
            metric.kind.value,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.help,
        )
        for metric in names.every_metric()
    )
    sections = (
        _section("Spans", ("span", "made by", "kind", "parent", "what it is"), spans),
        _section("Outcomes of a round", ("outcome", meaning), _words(names.OUTCOMES)),
        _section(
            "Reasons of a round without a draft", ("reason", meaning), _words(names.FALLBACKS)
        ),
        _section("Why a session takes no part in a step", ("reason", meaning), _words(names.WAITS)),
        _section("Why a draft token was never verified", ("reason", meaning), _words(names.DROPS)),
        _section("Errors that end a session", ("type", meaning), _words(names.FAILURES)),
        _section(
            "Attributes",
            ("attribute", meaning),
            _words({attribute: attribute.help for attribute in names.every_attribute()}),
        ),
        _section(
            "Metrics",
            ("metric", "on /metrics", "kind", "labels", "what it counts"),
            metrics,
        ),
    )
    return written.partition(_FIRST)[0] + "\n".join(sections)


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; the exit status."""
    written = PAGE.read_text() if PAGE.exists() else ""
    if "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(written))
        return 0
    if written == page(written):
        return 0
    print(f"{PAGE} is not up to date: run python -m services.runtime.telemetry.document")
    return 1


def _words(meanings: Mapping[str, str]) -> Iterable[Sequence[str]]:
    return ((f"`{word}`", meaning) for word, meaning in meanings.items())


def _section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join([f"## {title}", "", *lines, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
