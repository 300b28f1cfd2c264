"""The curve of a training: held-out acceptance and greedy agreement against positions seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.training.distill.training import Point
from services.training.svg import drawing

_SERIES = (("acceptance", "acceptance Σ min(p, q)", "#1f77b4"), ("greedy", "greedy", "#d62728"))


def plot_curve(curve: Sequence[Point], path: Path) -> None:
    """Draw the curve as SVG; dotted lines stand for the untrained start."""
    start, *trained = curve
    with drawing(path) as (_, axes):
        seen = [point.positions for point in trained]
        for name, label, colour in _SERIES:
            values = [getattr(point, name) for point in trained]
            axes.plot(seen, values, marker=".", color=colour, label=label)
            axes.axhline(getattr(start, name), linestyle=":", color=colour)
        axes.set(xscale="log", xlabel="positions seen", ylabel="held-out texts", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(title="dotted: untrained")
