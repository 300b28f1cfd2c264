"""Everything that was measured at one level of concurrency. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.comparison import Comparison, compare
from bench.figures import Figures, Spread, by_task, figures_of, speed_ups
from bench.runner import Configuration, Trial

Ratios = tuple[tuple[str, dict[str, Spread]], ...]
"""By configuration: ratios by what they are held against, or by task."""


@dataclass(frozen=True, slots=True)
class Section:
    """The figures of all configurations, `level` prompts at a time.

    `against`: how many times as fast each configuration is as each baseline. `tasks`:
    speed-ups over plain decoding by category, of each that was measured prompt by prompt.
    """

    level: int
    figures: tuple[Figures, ...]
    comparisons: tuple[Comparison, ...] = ()
    against: Ratios = ()
    tasks: Ratios = ()


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
            figures_of(own, one.name, plain, plain_all, exact=one.exact) for one in configurations
        )
        comparisons = tuple(compare(own, *pair) for pair in beside)
        tasks = _tasks(own, configurations, plain)
        made.append(Section(level, figures, comparisons, _against(own, configurations), tasks))
    return made


def _against(trials: Sequence[Trial], configurations: Sequence[Configuration]) -> Ratios:
    baselines = [one.name for one in configurations if one.baseline]
    made = []
    for one in configurations:
        if not one.baseline:
            each = ((name, Spread.of(speed_ups(trials, one.name, name))) for name in baselines)
            made.append((one.name, {name: spread for name, spread in each if spread is not None}))
    return tuple(pair for pair in made if pair[1])


def _tasks(trials: Sequence[Trial], configurations: Sequence[Configuration], plain: str) -> Ratios:
    each = ((one.name, by_task(trials, one.name, plain)) for one in configurations)
    return tuple((name, tasks) for name, tasks in each if tasks)
