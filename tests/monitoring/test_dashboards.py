"""Dashboards that Grafana takes as they are, whatever its data source is called."""

from itertools import combinations
from pathlib import Path

import pytest

from tests.monitoring.expressions import DASHBOARDS, dashboard, panels

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
PLAIN = ("row", "text")

each = pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)


def drawn(file: Path) -> list[dict]:
    """The panels that show data."""
    return [panel for panel in panels(dashboard(file)) if panel["type"] not in PLAIN]


def test_there_is_one_for_each_subject_and_their_ids_differ():
    made = {file.stem: dashboard(file)["uid"] for file in DASHBOARDS}
    assert made.keys() == {"overview", "redis", "speculation", "workers"}
    assert len(set(made.values())) == len(made)


@each
def test_a_dashboard_is_of_a_schema_that_grafana_reads_and_asks_for_a_data_source(file):
    made = dashboard(file)
    assert made["schemaVersion"] >= 36
    assert made["title"].startswith("Paceline / ")
    assert "paceline" in made["tags"]
    assert "id" not in made
    sources = [one for one in made["templating"]["list"] if one["type"] == "datasource"]
    assert [(one["name"], one["query"]) for one in sources] == [("datasource", "prometheus")]


@each
def test_panels_have_ids_of_their_own_and_stand_below_rows(file):
    made = panels(dashboard(file))
    ids = [panel["id"] for panel in made]
    assert len(set(ids)) == len(ids)
    assert made[0]["type"] == "row"


@each
def test_panels_do_not_overlap(file):
    taken = {panel["id"]: cells(panel["gridPos"]) for panel in panels(dashboard(file))}
    for one, other in combinations(taken, 2):
        assert not taken[one] & taken[other], (one, other)


def cells(place: dict[str, int]) -> set[tuple[int, int]]:
    assert place["x"] + place["w"] <= COLUMNS
    across = range(place["x"], place["x"] + place["w"])
    down = range(place["y"], place["y"] + place["h"])
    return {(x, y) for x in across for y in down}


@each
def test_a_panel_says_what_it_shows_in_which_unit_and_from_where(file):
    assert drawn(file)
    for panel in drawn(file):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == SOURCE
        assert panel["targets"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


@each
def test_several_lines_in_a_panel_can_be_told_apart(file):
    for panel in drawn(file):
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] == "timeseries":
            assert all(legends), panel["title"]
        assert len(set(legends)) == len(legends), panel["title"]
