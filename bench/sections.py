"""Everything that was measured at one level of concurrency. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bench.comparison import Comparison, compare
from bench.figures import (
    ConfigurationFigures,
    Measure,
    Spread,
    by_task,
    decode_rate,
    figures_of,
    first_token_s,
    ratios,
    whole_rate,
)
from bench.runner import Configuration, Trial

Ratios = tuple[tuple[str, dict[str, Spread]], ...]
"""By configuration: ratios by what they are held against, or by task."""

MEASURES: dict[str, Measure] = {
    "decoding": decode_rate,
    "first token": first_token_s,
    "whole answer": whole_rate,
}


@dataclass(frozen=True, slots=True)
class Gains:
    """What one measure gained.

    `against`: its ratio of each configuration to each baseline. `tasks`: to plain decoding by
    category, of each that was measured prompt by prompt.
    """

    against: Ratios = ()
    tasks: Ratios = ()


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of all configurations, `level` prompts at a time; `gains` by measure."""

    level: int
    figures: tuple[ConfigurationFigures, ...]
    comparisons: tuple[Comparison, ...] = ()
    gains: dict[str, Gains] = field(default_factory=dict)


def sections_of(
    trials: Sequence[Trial],
    configurations: Sequence[Configuration],
    pairs: Iterable[tuple[str, str]],
    plain: str,
    plain_all: str,
) -> list[Section]:
    """One section a level; `pairs` are (configuration, baseline), set beside each other."""
    beside = list(pairs)
    made = []
    for level in sorted({trial.level for trial in trials}):
        own = [trial for trial in trials if trial.level == level]
        figures = tuple(
            figures_of(own, one.name, plain, plain_all, exact=one.exact, dtype=one.dtype)
            for one in configurations
        )
        gains = {
            name: Gains(
                _against(own, configurations, measure), _tasks(own, configurations, plain, measure)
            )
            for name, measure in MEASURES.items()
        }
        comparisons = tuple(compare(own, *pair) for pair in beside)
        made.append(Section(level, figures, comparisons, gains))
    return made


def _against(
    trials: Sequence[Trial], configurations: Sequence[Configuration], measure: Measure
) -> Ratios:
    baselines = [one.name for one in configurations if one.baseline]
    made = []
    for one in configurations:
        if not one.baseline:
            each = {name: Spread.of(ratios(trials, one.name, name, measure)) for name in baselines}
            made.append((one.name, {name: spread for name, spread in each.items() if spread}))
    return tuple(pair for pair in made if pair[1])


def _tasks(
    trials: Sequence[Trial],
    configurations: Sequence[Configuration],
    plain: str,
    measure: Measure,
) -> Ratios:
    each = ((one.name, by_task(trials, one.name, plain, measure)) for one in configurations)
    return tuple((name, tasks) for name, tasks in each if tasks)
