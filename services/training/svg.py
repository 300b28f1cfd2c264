"""Plots as SVG files; the same plot is the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextmanager
def drawing(path: Path) -> Iterator[tuple[Figure, Axes]]:
    """A figure and its axes to draw on, stored at `path` in the end."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Fixed names and no date.
    with mpl.rc_context({"svg.hashsalt": "paceline", "svg.fonttype": "path"}):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        yield figure, figure.add_subplot()
        figure.savefig(path, format="svg", metadata={"Date": None})
