"""The picture of a search: every mask that was measured, and the best one so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.training.svg import drawing
from services.training.tuning.search import Trial, best_so_far


def plot_search(trials: Sequence[Trial], path: Path) -> None:
    """Draw the costs as SVG, darker the more is skipped; the dotted line is plain decoding."""
    numbers = range(1, len(trials) + 1)
    costs = [trial.figures.cost for trial in trials]
    shares = [trial.mask.share for trial in trials]
    with drawing(path) as (figure, axes):
        dots = axes.scatter(numbers, costs, c=shares, cmap="viridis_r", vmin=0, vmax=1, s=12)
        axes.step(numbers, best_so_far(costs), where="post", color="#d62728", label="best so far")
        axes.axhline(1.0, linestyle=":", color="#555555", label="plain decoding")
        axes.set(xlabel="masks measured", ylabel="time per verified token, plain = 1")
        axes.set_ylim(0, None)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.colorbar(dots, label="share of sub-layers skipped")
