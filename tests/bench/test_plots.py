"""The plots of a bench: what is drawn, and where."""

import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench import plots
from bench.plots import plot_all
from bench.prompts import BenchPrompt
from bench.runner import Configuration, Trial
from bench.sections import Section, sections_of
from tests.bench.test_figures import trial
from tests.console.events import stats


def measured() -> list[Trial]:
    rounds = [
        stats(3, 2, draft_ms=4.0, verify_ms=9.0, queue_ms=1.0, round_ms=12.0),
        stats(3, 0, draft_ms=2.0, verify_ms=7.0, queue_ms=1.0, round_ms=12.0),
    ]
    return [
        replace(
            trial(name, repeat, wall * level, rounds=rounds if name == "eager" else ()),
            group=group,
            level=level,
            prompts=(BenchPrompt(group, task, "?"),),
        )
        for level in (1, 4)
        for repeat, slow in enumerate((1.0, 1.5, 2.0))
        for group, task in enumerate(("math", "rag"))
        for name, wall in (("plain", 4.0), ("eager", 2.0 * slow))
    ]


def sections(trials: list[Trial]) -> list[Section]:
    names = [Configuration("plain"), Configuration("eager")]
    return sections_of(trials, names, [], "plain", "plain")


@pytest.fixture
def drawn(monkeypatch) -> dict[str, Axes]:
    """The axes of every plot, by the end of its name; nothing is written."""
    seen: dict[str, Axes] = {}

    @contextmanager
    def drawing(path: Path):
        figure = Figure()
        axes = figure.add_subplot()
        yield figure, axes
        seen[path.stem.partition("-")[2]] = axes

    monkeypatch.setattr(plots, "drawing", drawing)
    return seen


def test_four_plots_stand_beside_the_json(tmp_path):
    paths = list(plot_all(sections(measured()), tmp_path / "b.json"))
    assert [path.name for path in paths] == [
        "b-speed-up.svg",
        "b-acceptance.svg",
        "b-load.svg",
        "b-rounds.svg",
    ]
    for path in paths:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_each_plot_draws_its_figures_in_units_that_its_axes_name(drawn, tmp_path):
    list(plot_all(sections(measured()), tmp_path / "b.json"))
    bars = drawn["speed-up"]
    assert [label.get_text() for label in bars.get_xticklabels()] == ["math", "rag"]
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([4 / 3, 4 / 3])
    [[low, high], _] = bars.collections[0].get_segments()
    assert (low[1], high[1]) == pytest.approx((1.0, 2.0)), "from the least to the greatest"
    [line] = drawn["acceptance"].get_lines()
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([50.0, 100.0, 0.0])
    median, high, *_ = drawn["load"].get_lines()
    assert list(median.get_xdata()) == [1, 4]
    assert list(median.get_ydata()) == pytest.approx([4.0, 16.0])
    assert (median.get_linestyle(), high.get_linestyle()) == ("-", ":")
    verify, queue, draft = parts = drawn["rounds"].patches
    assert [bar.get_width() for bar in parts] == [8.0, 1.0, 3.0]
    assert [bar.get_x() for bar in (verify, queue, draft)] == [0.0, 8.0, 0.0]
    ends = {"speed-up": "×", "acceptance": "%", "load": ", s"}
    assert all(drawn[name].get_ylabel().endswith(unit) for name, unit in ends.items())
    assert "ms" in drawn["rounds"].get_xlabel()
    assert all(axes.get_legend() for axes in drawn.values())


def test_one_level_has_no_load_and_peers_have_no_rounds(tmp_path):
    trials = [trial("plain", 0, 4.0), trial("eager", 0, 2.0)]
    paths = list(plot_all(sections(trials), tmp_path / "b.json"))
    assert [path.name for path in paths] == ["b-speed-up.svg"]
    assert list(plot_all([], tmp_path / "b.json")) == []
