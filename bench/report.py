"""The figures as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from bench.comparison import Comparison
from bench.figures import ConfigurationFigures, Percentiles, RoundSplit
from bench.output import Row, answer_content, shown, table
from bench.runner import Trial
from bench.sections import Ratios, Section


def print_report(
    console: Console, sections: Sequence[Section], setting: Mapping[str, object]
) -> None:
    """One table a level: a column per configuration, a row per figure; then what is compared."""
    for section in sections:
        if len(sections) > 1:
            console.print(f"{section.level} at a time", style="bold", highlight=False)
        figures = section.figures
        console.print(table("", [one.configuration for one in figures], rows(figures)))
        for title, ratios in _gains(section):
            console.print()
            console.print(table(title, [name for name, _ in ratios], ratio_rows(ratios)))
        if section.comparisons:
            console.print()
            columns = [f"{one.configuration} / {one.baseline}" for one in section.comparisons]
            console.print(table("beside", columns, comparison_rows(section.comparisons)))
        console.print()
    print_setting(console, setting)


def print_setting(console: Console, setting: Mapping[str, object]) -> None:
    """What was measured, a line each."""
    for name, value in setting.items():
        console.print(f"{name}: {_words(value)}", style="dim", highlight=False, soft_wrap=True)


def _gains(section: Section) -> Iterator[tuple[str, Ratios]]:
    """What each measure gained over the baselines, and by task where it is a speed."""
    for name, gains in section.gains.items():
        is_time = name == "first token"
        if gains.against:
            times = "times that of" if is_time else "times as fast as"
            yield f"{name}: {times}", gains.against
        if gains.tasks and not is_time:
            yield f"{name}: over plain by task", gains.tasks


def rows(figures: Sequence[ConfigurationFigures]) -> list[Row]:
    """The rows of the table; spreads are median (least–greatest) over the repeats."""
    return [
        ("number format", [one.dtype or "–" for one in figures]),
        ("decoding, tokens/s after the first", [shown(one.decoding) for one in figures]),
        ("… × plain", [shown(one.decoding_ratio) for one in figures]),
        ("… × plain on all cores", [shown(one.decoding_ratio_all_cores) for one in figures]),
        ("first token, ms p50/p95/p99", [_times(one.first_token) for one in figures]),
        ("… × plain (less is better)", [shown(one.first_token_ratio) for one in figures]),
        ("… × plain on all cores", [shown(one.first_token_ratio_all_cores) for one in figures]),
        ("whole answer, tokens/s", [shown(one.tokens_per_second) for one in figures]),
        ("… × plain", [shown(one.speed_up) for one in figures]),
        ("… × plain on all cores", [shown(one.speed_up_all_cores) for one in figures]),
        ("prompt tokens from a cache", [f"{one.cached_share:.0%}" for one in figures]),
        ("draft tokens from other texts", [shown(one.recalled_tokens) for one in figures]),
        ("per token, ms p50/p95/p99", [_times(one.per_token) for one in figures]),
        ("between chunks, ms p50/p95/p99", [_times(one.gap) for one in figures]),
        ("whole answer, ms p50/p95/p99", [_times(one.latency) for one in figures]),
        ("round: draft/verify/queue, ms", [_split(one.split) for one in figures]),
        ("orchestrator CPU per round, ms", [shown(one.orchestrator_cpu_ms) for one in figures]),
        ("block efficiency", [_known(one.block_efficiency) for one in figures]),
        ("target calls per token", [_known(one.target_calls_per_token) for one in figures]),
        ("draft calls per token", [_known(one.drafted_per_token) for one in figures]),
        ("acceptance", [_share(one, one.acceptance_rate) for one in figures]),
        ("wasted draft tokens", [_share(one, one.wasted_share) for one in figures]),
        ("acceptance by position, %", [_positions(one) for one in figures]),
        ("tokens", [str(one.tokens) for one in figures]),
        ("rule", [", ".join(one.rules) or "–" for one in figures]),
        ("texts equal to plain", [_equal(one) for one in figures]),
    ]


def ratio_rows(ratios: Ratios) -> list[Row]:
    """One row for everything that the configurations are held against."""
    names = dict.fromkeys(name for _, own in ratios for name in own)
    return [(name, [shown(own.get(name)) for _, own in ratios]) for name in names]


def comparison_rows(comparisons: Sequence[Comparison]) -> list[Row]:
    """Ratios over the repeats, then differences over the prompts with their standard error."""
    return [
        ("decoding, ratio", [shown(one.decoding) for one in comparisons]),
        ("whole answer, ratio", [shown(one.speed) for one in comparisons]),
        ("block efficiency, ratio", [shown(one.block_efficiency) for one in comparisons]),
        ("acceptance, ratio", [shown(one.acceptance) for one in comparisons]),
        ("block efficiency, gain", [shown(one.block_efficiency_gain) for one in comparisons]),
        ("accepted per round, gain", [shown(one.accepted_per_round_gain) for one in comparisons]),
    ]


def summary_of(sections: Sequence[Section], setting: Mapping[str, object]) -> dict[str, object]:
    """Setting and figures by level."""
    return {"setting": dict(setting), "levels": [_section(one) for one in sections]}


def _section(section: Section) -> dict[str, object]:
    return {
        "concurrency": section.level,
        "figures": [asdict(one) for one in section.figures],
        "gains": {
            name: {"against": _ratios(gains.against), "tasks": _ratios(gains.tasks)}
            for name, gains in section.gains.items()
        },
        "comparisons": [asdict(one) for one in section.comparisons],
    }


def _ratios(ratios: Ratios) -> dict[str, dict[str, object]]:
    return {name: {key: asdict(spread) for key, spread in own.items()} for name, own in ratios}


def trial_content(trial: Trial) -> dict[str, object]:
    """A trial without prompts and texts."""
    return {
        "configuration": trial.configuration,
        "concurrency": trial.level,
        "repeat": trial.repeat,
        "group": trial.group,
        "wall_s": trial.wall_s,
        "cpu_s": dict(trial.cpu_s),
        "recalled_tokens": trial.recalled,
        "results": [
            {
                "question_id": prompt.question_id,
                "category": prompt.category,
                "prompt_tokens": result.complete.usage.prompt_tokens,
                "cached_tokens": result.complete.usage.cached_tokens,
                **answer_content(result),
            }
            for prompt, result in zip(trial.prompts, trial.results, strict=True)
        ],
    }


def _equal(figures: ConfigurationFigures) -> str:
    same = figures.same_text_as_plain
    return "not promised" if same is None else "{}/{}".format(*same)


def _times(times: Percentiles | None) -> str:
    if times is None:
        return "–"
    return "/".join(f"{value:.0f}" for value in (times.p50, times.p95, times.p99))


def _split(split: RoundSplit | None) -> str:
    if split is None:
        return "–"
    return "/".join(f"{ms:.1f}" for ms in (split.draft, split.verify, split.queue))


def _known(figure: float) -> str:
    return f"{figure:.2f}" if figure else "–"


def _share(figures: ConfigurationFigures, share: float) -> str:
    return f"{share:.0%}" if figures.drafted_per_token else "–"


def _positions(figures: ConfigurationFigures) -> str:
    return " ".join(f"{100 * rate:.0f}" for rate in figures.acceptance_per_position) or "–"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(one) for one in value)
    return str(value)
