"""Dashboards fit the newest schema of Grafana."""

import copy
import json

from tests.monitoring import grafana
from tests.monitoring.expressions import DASHBOARDS

ALL = [json.loads(file.read_text()) for file in DASHBOARDS]


def test_dashboards_fit_the_newest_schema_of_grafana(tmp_path):
    assert grafana.complaints(tmp_path, ALL) == []


def _first(dashboard, kind):
    return next(one for one in grafana.panels(dashboard) if one["type"] == kind)


def test_a_dashboard_that_does_not_fit_is_found(tmp_path):
    broken = [copy.deepcopy(ALL[0]) for _ in range(4)]
    broken[0]["panels"][0]["gridPos"]["width"] = 1
    _first(broken[1], "stat")["options"]["graphMode"] = "areas"
    _first(broken[2], "timeseries")["fieldConfig"]["defaults"]["custom"]["fillOpacit"] = 1
    _first(broken[3], "timeseries")["fieldConfig"]["defaults"]["thresholds"] = {"mode": "half"}
    found = "\n".join(grafana.complaints(tmp_path, broken))
    for word in ("width", "areas", "fillOpacit", "half"):
        assert word in found
