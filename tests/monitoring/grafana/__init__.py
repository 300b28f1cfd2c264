"""Dashboards as Grafana's own types have them, which TypeScript compares.

Types are those of the package @grafana/schema (its version is in package.json): a dashboard and
the options of each kind of panel. JSON has strings where types have enumerations, and leaves
out what a panel's defaults fill in.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.docs import npm
from tests.tools import tool

Dashboard = dict[str, Any]

HERE = Path(__file__).parent
V1, V2 = "raw/dashboard/x/types.gen", "schema/dashboard/v2/types.spec.gen"
_PRELUDE = """
type Json<T> = T extends string ? `${T}` : T extends number | boolean | null | undefined ? T
  : T extends Array<infer U> ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Some<T> = T extends Array<infer U> ? Some<U>[]
  : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;
"""


def complaints(folder: Path, dashboards: Iterable[Dashboard]) -> list[str]:
    """What TypeScript finds wrong with these, a line each, compiled in this empty folder."""
    shutil.copy(HERE / "tsconfig.json", folder)
    (folder / "node_modules").symlink_to(npm.packages(HERE))
    (folder / "dashboards.ts").write_text(source(dashboards))
    node = tool("node", "apt install nodejs npm")
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    ran = subprocess.run(
        [node, str(compiler), "-p", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = ran.stdout.splitlines()
    assert bool(found) == bool(ran.returncode), ran.stderr
    return found


def source(dashboards: Iterable[Dashboard]) -> str:
    """The module: each dashboard in both versions, and what its panels are told."""
    kinds: set[str] = set()
    lines = []
    for number, dashboard in enumerate(dashboards):
        lines.append(_literal(f"v1_{number}", "Json<v1.Dashboard>", dashboard))
        lines.append(_literal(f"v2_{number}", "v2.Spec", converted(dashboard)))
        for panel in panels(dashboard):
            kind, name = panel["type"], f"panel_{number}_{panel['id']}"
            kinds.add(kind)
            lines.append(_literal(name, f"Some<Json<{kind}.Options>>", panel.get("options", {})))
            custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
            if custom is not None:
                lines.append(_literal(f"{name}_field", f"Some<Json<{kind}.FieldConfig>>", custom))
    paths = {kind: f"raw/composable/{kind}/panelcfg/x/types.gen" for kind in sorted(kinds)}
    paths |= {"v1": V1, "v2": V2}
    imports = [f"import type * as {name} from 'grafana/{path}';" for name, path in paths.items()]
    return "\n".join([*imports, _PRELUDE, *lines, ""])


def _literal(name: str, kind: str, value: Any) -> str:
    return f"export const {name}: {kind} = {json.dumps(value)};"


def panels(dashboard: Dashboard) -> Iterator[Dashboard]:
    """All that show something; rows do not."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


# --- the second version of the schema -----------------------------------------------------


def converted(dashboard: Dashboard) -> Dashboard:
    """The same in `dashboard.grafana.app/v2`, in which Grafana 13 keeps dashboards.

    Raises AssertionError for a field that has no place there, or that no dashboard of ours had
    when this was written.
    """
    left = dict(dashboard)
    for name in ("uid", "version", "schemaVersion"):
        left.pop(name)
    time, templating = left.pop("time"), left.pop("templating")
    shown = list(panels(left))
    made = {
        "title": left.pop("title"),
        "description": left.pop("description"),
        "tags": left.pop("tags"),
        "editable": left.pop("editable"),
        "preload": False,
        "cursorSync": ("Off", "Crosshair", "Tooltip")[left.pop("graphTooltip")],
        "links": left.pop("links"),
        "annotations": left.pop("annotations")["list"],
        "timeSettings": {
            **time,
            "timezone": left.pop("timezone"),
            "autoRefresh": left.pop("refresh"),
            "autoRefreshIntervals": [],
            "hideTimepicker": False,
            "fiscalYearStartMonth": 0,
        },
        "variables": [_variable(one) for one in templating["list"]],
        "elements": {f"panel-{one['id']}": _panel(one) for one in shown},
        "layout": {"kind": "RowsLayout", "spec": {"rows": list(_rows(left.pop("panels")))}},
    }
    assert not left, sorted(left)
    return made


def _variable(given: Dashboard) -> Dashboard:
    left = dict(given)
    kind, query = left.pop("type"), left.pop("query")
    assert left.pop("hide") == 0
    spec = {
        "name": left.pop("name"),
        "label": left.pop("label"),
        "current": left.pop("current", {"text": "", "value": ""}),
        "options": left.pop("options", []),
        "multi": left.pop("multi", False),
        "includeAll": left.pop("includeAll", False),
        "hide": "dontHide",
        "skipUrlSync": False,
        "allowCustomValue": True,
    }
    if kind == "datasource":
        spec |= {"pluginId": query, "refresh": "onDashboardLoad", "regex": ""}
        named = "DatasourceVariable"
    else:
        assert kind == "custom"
        spec |= {"query": query, "allValue": left.pop("allValue")}
        named = "CustomVariable"
    assert not left, sorted(left)
    return {"kind": named, "spec": spec}


def _panel(given: Dashboard) -> Dashboard:
    left = dict(given)
    left.pop("gridPos"), left.pop("datasource", None)
    spec = {
        "id": left.pop("id"),
        "title": left.pop("title"),
        "description": left.pop("description", ""),
        "links": [],
        "data": {
            "kind": "QueryGroup",
            "spec": {
                "queries": [_query(one) for one in left.pop("targets", ())],
                "transformations": [],
                "queryOptions": {},
            },
        },
        "vizConfig": {
            "kind": "VizConfig",
            "group": left.pop("type"),
            "version": "",
            "spec": {
                "options": left.pop("options", {}),
                "fieldConfig": left.pop("fieldConfig", {"defaults": {}, "overrides": []}),
            },
        },
    }
    assert not left, sorted(left)
    return {"kind": "Panel", "spec": spec}


def _query(given: Dashboard) -> Dashboard:
    left = dict(given)
    source, identity = left.pop("datasource"), left.pop("refId")
    query = {
        "kind": "DataQuery",
        "group": source["type"],
        "version": "v0",
        "datasource": {"name": source["uid"]},
        "spec": left,
    }
    return {"kind": "PanelQuery", "spec": {"query": query, "refId": identity, "hidden": False}}


def _rows(given: Iterable[Dashboard]) -> Iterator[Dashboard]:
    """Each row with its panels: those in it, or, of an open one, those behind it."""
    row: Dashboard | None = None
    for panel in given:
        if panel["type"] == "row":
            if row is not None:
                yield row
            items = [_item(one) for one in panel["panels"]]
            layout = {"kind": "GridLayout", "spec": {"items": items}}
            spec = {"title": panel["title"], "collapse": panel["collapsed"], "layout": layout}
            row = {"kind": "RowsLayoutRow", "spec": spec}
        else:
            assert row is not None, "a panel before the first row"
            row["spec"]["layout"]["spec"]["items"].append(_item(panel))
    assert row is not None
    yield row


def _item(panel: Dashboard) -> Dashboard:
    place = panel["gridPos"]
    spec = {
        **{"x": place["x"], "y": place["y"], "width": place["w"], "height": place["h"]},
        "element": {"kind": "ElementReference", "name": f"panel-{panel['id']}"},
    }
    return {"kind": "GridLayoutItem", "spec": spec}
