"""The figures as plots: speed-up by task, acceptance by position, latency against load, rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import ConfigurationFigures, Spread
from bench.sections import Section
from services.training.svg import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.8
_PARTS = ("verify", "queue")
_COLOURS = {"draft": "#ff7f0e", "verify": "#1f77b4", "queue": "#9467bd"}


def plot_all(sections: Sequence[Section], beside: Path) -> Iterator[Path]:
    """Draw what there is, as SVG files named after the file `beside`; their paths.

    Nothing where there is no matplotlib.
    """
    if not sections or find_spec("matplotlib") is None:
        return
    first = sections[0]
    if (decoding := first.gains.get("decoding")) and decoding.tasks:
        yield _plot_tasks(decoding.tasks, _named(beside, "speed-up"))
    if drafting := [one for one in first.figures if one.acceptance_per_position]:
        yield _plot_acceptance(drafting, _named(beside, "acceptance"))
    if len(sections) > 1:
        yield _plot_load(sections, _named(beside, "load"))
    if timed := [one for one in first.figures if one.split is not None]:
        yield _plot_rounds(timed, first.level, _named(beside, "rounds"))


def _named(beside: Path, what: str) -> Path:
    return beside.with_name(f"{beside.stem}-{what}.svg")


def _plot_tasks(tasks: Sequence[tuple[str, dict[str, Spread]]], path: Path) -> Path:
    """Grouped bars; whiskers are the least and the greatest repeat."""
    names = sorted({task for _, own in tasks for task in own})
    with drawing(path) as (figure, axes):
        _tell_apart(axes, len(tasks))
        figure.set_size_inches(max(7.6, 2.8 + 0.14 * len(names) * (len(tasks) + 1)), 4.4)
        width = _BAR / len(tasks)
        for number, (name, own) in enumerate(tasks):
            measured = [(place, own[task]) for place, task in enumerate(names) if task in own]
            spreads = [spread for _, spread in measured]
            axes.bar(
                [place - _BAR / 2 + (number + 0.5) * width for place, _ in measured],
                [spread.median for spread in spreads],
                width,
                yerr=_whiskers(spreads),
                error_kw={"linewidth": 0.8},
                label=name,
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axes.set(xlabel="task", ylabel="decoding, speed-up over plain, ×")
        _finish(axes, "whiskers: least and greatest repeat")
    return path


def _whiskers(spreads: Sequence[Spread]) -> tuple[list[float], list[float]]:
    return [one.median - one.low for one in spreads], [one.high - one.median for one in spreads]


def _plot_acceptance(figures: Sequence[ConfigurationFigures], path: Path) -> Path:
    from matplotlib.ticker import MaxNLocator

    with drawing(path) as (figure, axes):
        _for_lines(figure, axes, len(figures))
        for one in figures:
            rates = [100.0 * rate for rate in one.acceptance_per_position]
            axes.plot(range(1, len(rates) + 1), rates, marker="o", label=one.configuration)
        axes.set(
            xlabel="position in the draft, tokens",
            ylabel="accepted if all before it were, %",
            ylim=(0, 102),
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes)
    return path


def _plot_load(sections: Sequence[Section], path: Path) -> Path:
    """Time of whole answers, medians solid and 95th percentiles dotted."""
    levels = [section.level for section in sections]
    with drawing(path) as (figure, axes):
        _for_lines(figure, axes, len(sections[0].figures))
        for number, one in enumerate(sections[0].figures):
            own = [(s.level, s.figures[number].latency) for s in sections]
            points = [(level, times) for level, times in own if times is not None]
            at = [level for level, _ in points]
            [line] = axes.plot(
                at, [1e-3 * times.p50 for _, times in points], marker="o", label=one.configuration
            )
            high = [1e-3 * times.p95 for _, times in points]
            axes.plot(at, high, linestyle=":", color=line.get_color())
        axes.set_xscale("log", base=2)
        axes.set_xticks(levels, [str(level) for level in levels])
        axes.set(xlabel="prompts at a time", ylabel="time of an answer, s", ylim=(0, None))
        _finish(axes, "solid: median, dotted: 95th percentile")
    return path


def _plot_rounds(figures: Sequence[ConfigurationFigures], level: int, path: Path) -> Path:
    """Two bars each: the round, and the drafter's time for it."""
    with drawing(path) as (figure, axes):
        figure.set_size_inches(7.2, 1.6 + 0.45 * len(figures))
        for place, one in enumerate(figures):
            left = 0.0
            for part in _PARTS:
                length = getattr(one.split, part)
                label = part if place == 0 else None
                axes.barh(place - 0.18, length, 0.36, left, color=_COLOURS[part], label=label)
                left += length
            label = "draft" if place == 0 else None
            drafted = one.split.draft if one.split else 0.0
            axes.barh(place + 0.2, drafted, 0.3, color=_COLOURS["draft"], label=label)
        axes.set_yticks(range(len(figures)), [one.configuration for one in figures])
        axes.invert_yaxis()
        axes.set(xlabel=f"mean time per round, ms ({level} at a time)", ylabel="configuration")
        _finish(axes)
    return path


def _for_lines(figure: Figure, axes: Axes, count: int) -> None:
    """Room for a legend beside `count` lines."""
    figure.set_size_inches(7.6, max(4.0, 1.2 + 0.24 * count))
    _tell_apart(axes, count)


def _tell_apart(axes: Axes, count: int) -> None:
    """As many colours as there are things; twenty at most."""
    from matplotlib import colormaps

    if count > 10:
        axes.set_prop_cycle(color=list(colormaps["tab20"](range(20))))


def _finish(axes: Axes, title: str | None = None) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(
        title=title,
        fontsize="small",
        title_fontsize="small",
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )
