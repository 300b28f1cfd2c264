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
DASHBOARD = "raw/dashboard/x/types.gen"
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
    """The module: each dashboard, and what its panels are told."""
    kinds: set[str] = set()
    lines = []
    for number, dashboard in enumerate(dashboards):
        lines.append(_literal(f"dashboard_{number}", "Json<v1.Dashboard>", dashboard))
        for panel in panels(dashboard):
            kind, name = panel["type"], f"panel_{number}_{panel['id']}"
            kinds.add(kind)
            lines.append(_literal(name, f"Some<Json<{kind}.Options>>", panel.get("options", {})))
            custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
            if custom is not None:
                lines.append(_literal(f"{name}_field", f"Some<Json<{kind}.FieldConfig>>", custom))
    paths = {kind: f"raw/composable/{kind}/panelcfg/x/types.gen" for kind in sorted(kinds)}
    paths["v1"] = DASHBOARD
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
