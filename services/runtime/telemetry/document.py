"""Writes docs/telemetry.md from the names: `python -m services.runtime.telemetry.document`.

With `--check` it writes nothing and fails if the file is not what it would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from services.runtime.telemetry import names

PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"

_INTRODUCTION = """\
# Telemetry

Written by `python -m services.runtime.telemetry.document` from
`services/runtime/telemetry/names.py`; change it there.

Every process serves Prometheus metrics at `/metrics` when it is given a port for
them. Traces and metrics leave by OTLP/gRPC when the standard OpenTelemetry
variables ask for it: an endpoint in `OTEL_EXPORTER_OTLP_ENDPOINT`, or
`OTEL_TRACES_EXPORTER=otlp`, `OTEL_METRICS_EXPORTER=otlp` (`none` turns one off).
`OTEL_SDK_DISABLED=true` turns everything off. `OTEL_TRACES_SAMPLER` of the
orchestrator decides which sessions are traced (default `parentbased_always_on`);
rounds and workers follow. `OTEL_BSP_*` sizes the queue of spans,
`OTEL_RESOURCE_ATTRIBUTES` adds to the process's attributes. A collector that is
down costs spans, never a token's time. No prompt and no output is ever in here.
[tracing.md](tracing.md) says what to look at when something is slow.
Grafana dashboards are in `k8s/dashboards`, recording and alerting rules in `k8s/rules`;
[runbooks.md](runbooks.md) says what to do about each alert. Each label has a fixed set of
values, and every series exists from the start, at 0: one that began with its first event
would hide that event from `rate`.

Mean acceptance length as vLLM defines it is
`1 + spec_decode_num_accepted_tokens_total / spec_decode_num_drafts_total`; block
efficiency is `paceline_emitted_tokens_total` over all `paceline_rounds_total` but
those `discarded` and `abandoned`.
"""


def page() -> str:
    """The whole page, as Markdown."""
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
            metric.unit.strip("{}"),
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
        _section("Errors that end a session", ("type", meaning), _words(names.FAILURES)),
        _section(
            "Attributes",
            ("attribute", meaning),
            _words({attribute: attribute.help for attribute in names.every_attribute()}),
        ),
        _section(
            "Metrics",
            ("metric", "on /metrics", "kind", "unit", "labels", "what it counts"),
            metrics,
        ),
    )
    return "\n".join([_INTRODUCTION, *sections])


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; the exit status."""
    if "--check" not in arguments:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
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
