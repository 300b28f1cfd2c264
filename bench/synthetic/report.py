"""The figures of a synthetic run as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from bench.figures import Percentiles
from bench.output import Row, shown, table
from bench.synthetic.figures import SyntheticFigures

LABEL = "synthetic"


def print_report(
    console: Console,
    figures: Sequence[SyntheticFigures],
    published: Mapping[str, float],
    setting: Mapping[str, object],
) -> None:
    """One column for each way to decode, one row for each figure."""
    console.print(table(LABEL, [one.way for one in figures], rows(figures, published)))
    for name, value in setting.items():
        console.print(f"{name}: {value}", style="dim", highlight=False, soft_wrap=True)


def rows(figures: Sequence[SyntheticFigures], published: Mapping[str, float]) -> list[Row]:
    """The rows of the table; spreads are median (least–greatest) over the repeats."""
    baselines = list(dict.fromkeys(name for one in figures for name in one.speed_up))
    found = [
        ("ms/token", [shown(one.ms_per_token) for one in figures]),
        ("ms/token after the first", [shown(one.decode_ms) for one in figures]),
        ("first token, ms", [shown(one.first_token) for one in figures]),
        *(
            (f"speed-up over {name}", [shown(one.speed_up.get(name)) for one in figures])
            for name in baselines
        ),
        ("tokens/s, all sessions", [shown(one.tokens_per_second) for one in figures]),
        ("rounds per session", [f"{one.rounds_per_session:.1f}" for one in figures]),
        ("block efficiency", [f"{one.block_efficiency:.2f}" for one in figures]),
        ("drafted tokens per token", [f"{one.drafted_per_token:.2f}" for one in figures]),
        ("acceptance", [f"{one.acceptance:.0%}" for one in figures]),
        ("verify, ms p50/p99", [_times(one.verify) for one in figures]),
        ("round overhead, ms p50/p99", [_times(one.overhead) for one in figures]),
        ("orchestrator CPU, ms/round", [shown(one.cpu_per_round) for one in figures]),
    ]
    if published:
        found.append(("published, ms/token", [_published(published, one) for one in figures]))
    return found


def summary_of(
    figures: Sequence[SyntheticFigures], setting: Mapping[str, object]
) -> dict[str, object]:
    """Setting and figures."""
    return {LABEL: True, "setting": dict(setting), "figures": [asdict(one) for one in figures]}


def _times(times: Percentiles | None) -> str:
    return "–" if times is None else f"{times.p50:.2f}/{times.p99:.2f}"


def _published(published: Mapping[str, float], one: SyntheticFigures) -> str:
    return f"{published[one.way]:.2f}" if one.way in published else "–"
