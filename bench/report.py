"""The figures as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.comparison import Comparison, Paired
from bench.figures import Figures, Percentiles, Spread
from bench.runner import Trial

Row = tuple[str, list[str]]


def print_report(
    console: Console,
    figures: Sequence[Figures],
    setting: Mapping[str, object],
    comparisons: Sequence[Comparison] = (),
) -> None:
    """One column per configuration, one row per figure; then what is compared, likewise."""
    console.print(_table("", [one.configuration for one in figures], rows(figures)))
    if comparisons:
        columns = [f"{one.configuration} / {one.baseline}" for one in comparisons]
        console.print(_table("beside", columns, comparison_rows(comparisons)))
    for name, value in setting.items():
        console.print(f"{name}: {_words(value)}", style="dim", highlight=False, soft_wrap=True)


def _table(title: str, columns: Sequence[str], content: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    for name, cells in content:
        table.add_row(name, *cells)
    return table


def rows(figures: Sequence[Figures]) -> list[Row]:
    """The rows of the table; spreads are median (least–greatest) over the repeats."""
    return [
        ("tokens/s", [_text(one.tokens_per_second) for one in figures]),
        ("speed-up over plain", [_text(one.speed_up) for one in figures]),
        ("… over plain on all cores", [_text(one.speed_up_all_cores) for one in figures]),
        ("tokens/s after the first", [f"{one.decode_rate:.2f}" for one in figures]),
        ("first token, ms p50/p95/p99", [_times(one.first_token) for one in figures]),
        ("per token, ms p50/p95/p99", [_times(one.per_token) for one in figures]),
        ("round overhead, ms p50/p95/p99", [_times(one.overhead, 2) for one in figures]),
        ("block efficiency", [f"{one.block_efficiency:.2f}" for one in figures]),
        ("target calls per token", [f"{one.target_calls_per_token:.2f}" for one in figures]),
        ("drafted tokens per token", [f"{one.drafted_per_token:.2f}" for one in figures]),
        ("acceptance", [_share(one, one.acceptance_rate) for one in figures]),
        ("wasted draft tokens", [_share(one, one.wasted_share) for one in figures]),
        ("acceptance by position, %", [_positions(one) for one in figures]),
        ("tokens", [str(one.tokens) for one in figures]),
        ("rule", [", ".join(one.rules) or "–" for one in figures]),
        ("texts equal to plain", [_equal(one) for one in figures]),
    ]


def comparison_rows(comparisons: Sequence[Comparison]) -> list[Row]:
    """Ratios over the repeats, then differences over the prompts with their standard error."""
    return [
        ("tokens/s, ratio", [_text(one.speed) for one in comparisons]),
        ("block efficiency, ratio", [_text(one.block_efficiency) for one in comparisons]),
        ("acceptance, ratio", [_text(one.acceptance) for one in comparisons]),
        ("block efficiency, gain", [_text(one.block_efficiency_gain) for one in comparisons]),
        ("accepted per round, gain", [_text(one.accepted_per_round_gain) for one in comparisons]),
    ]


def write_json(
    path: Path,
    figures: Sequence[Figures],
    trials: Sequence[Trial],
    setting: Mapping[str, object],
    comparisons: Sequence[Comparison] = (),
) -> None:
    """Everything: setting, figures, comparisons, and every trial with its rounds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "setting": dict(setting),
        "figures": [asdict(one) for one in figures],
        "comparisons": [asdict(one) for one in comparisons],
        "trials": [_trial(one) for one in trials],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def _trial(trial: Trial) -> dict[str, object]:
    """A trial without prompts and texts: token counts, times and rounds are what counts."""
    return {
        "configuration": trial.configuration,
        "repeat": trial.repeat,
        "group": trial.group,
        "wall_s": trial.wall_s,
        "results": [
            {
                "question_id": prompt.question_id,
                "category": prompt.category,
                "prompt_tokens": result.complete.usage.prompt_tokens,
                "tokens": result.tokens,
                "first_token_s": result.first_token_s,
                "total_s": result.total_s,
                "arrivals": result.arrivals,
                "rounds": [asdict(stats) for stats in result.rounds],
            }
            for prompt, result in zip(trial.prompts, trial.results, strict=True)
        ],
    }


def _text(figure: Spread | Paired | None) -> str:
    return "–" if figure is None else str(figure)


def _equal(figures: Figures) -> str:
    same = figures.same_text_as_plain
    return "not promised" if same is None else "{}/{}".format(*same)


def _times(times: Percentiles | None, digits: int = 0) -> str:
    if times is None:
        return "–"
    return "/".join(f"{value:.{digits}f}" for value in (times.p50, times.p95, times.p99))


def _share(figures: Figures, share: float) -> str:
    return f"{share:.0%}" if figures.drafted_per_token else "–"


def _positions(figures: Figures) -> str:
    return " ".join(f"{100 * rate:.0f}" for rate in figures.acceptance_per_position) or "–"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(one) for one in value)
    return str(value)
