"""Every PromQL expression below k8s/."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from services.runtime.telemetry import names
from services.runtime.telemetry.names import MetricKind

ROOT = Path(__file__).parents[2]
RULES = ROOT / "k8s" / "rules" / "paceline.yaml"
DASHBOARDS = sorted((ROOT / "k8s" / "dashboards").glob("*.json"))
SCALERS = [ROOT / "k8s" / "components" / name for name in ("hpa", "keda")]

# What Grafana puts in, and what the Prometheus adapter does.
_VARIABLES = {"$__rate_interval": "30s", "$role": ".*"}
_ADAPTER = {"<<.LabelMatchers>>": "", "<<.GroupBy>>": "pod"}

_TOKEN = re.compile(
    r"""(?P<quoted>"[^"]*"|'[^']*')|(?P<open>[({[])|(?P<close>[)}\]])"""
    r"""|(?P<cut>\b(?:and|or|unless)\b|[<>]=?|[=!]=)"""
)
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")
_ABSENT = re.compile(r"absent\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Expression:
    """An expression that should always have a value, and where it stands."""

    source: str
    promql: str

    def __str__(self) -> str:
        return self.source


@cache
def rules() -> tuple[dict[str, Any], ...]:
    """Every recording and alerting rule."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


def alerts() -> dict[str, dict[str, Any]]:
    """The alerting rules, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def dashboard(file: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(file.read_text())
    return made


def panels(of: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel of a dashboard, those in collapsed rows included."""
    return [one for panel in of["panels"] for one in (panel, *panel.get("panels", ()))]


def in_rules() -> Iterator[Expression]:
    """Recorded expressions, and what alerts compare: an alert itself is silent when all is well."""
    for rule in rules():
        if "record" in rule:
            yield Expression(rule["record"], rule["expr"])
        else:
            for part in operands(rule["expr"]):
                yield Expression(f"{rule['alert']}: {part}", part)


def in_dashboards() -> Iterator[Expression]:
    for file in DASHBOARDS:
        for panel in panels(dashboard(file)):
            for target in panel.get("targets", ()):
                source = f"{file.stem}: {panel['title']} {target['refId']}"
                yield Expression(source, filled_in(target["expr"], _VARIABLES))


def in_scalers() -> Iterator[Expression]:
    for folder in SCALERS:
        for file in sorted(folder.rglob("*.yaml")):
            for document in yaml.safe_load_all(file.read_text()):
                for number, promql in enumerate(queries(document), 1):
                    yield Expression(f"{folder.name}/{file.name} {number}", promql)


def queries(node: Any) -> Iterator[str]:
    """The queries of a manifest: of KEDA's triggers, and of rules of the Prometheus adapter.

    A file within a ConfigMap is looked into.
    """
    if isinstance(node, list):
        for one in node:
            yield from queries(one)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key == "query":
            yield value
        elif key == "metricsQuery":
            series = node["seriesQuery"].partition("{")[0]
            yield filled_in(value, {**_ADAPTER, "<<.Series>>": series})
        elif isinstance(value, str) and key.endswith((".yaml", ".yml")):
            yield from queries(yaml.safe_load(value))
        else:
            yield from queries(value)


def filled_in(promql: str, values: dict[str, str]) -> str:
    """With the templates' variables replaced. Raises ValueError for one that is not known."""
    for variable, value in values.items():
        promql = promql.replace(variable, value)
    if "$" in promql or "<<" in promql:
        raise ValueError(f"a variable is left: {promql}")
    return promql


def operands(promql: str) -> list[str]:
    """What an alert's comparisons and set operators stand between, but for plain numbers."""
    depth, start, parts = 0, 0, []
    for token in _TOKEN.finditer(promql):
        depth += bool(token["open"]) - bool(token["close"])
        if token["cut"] and depth == 0:
            parts.append(promql[start : token.start()])
            start = token.end()
    parts = [part.strip() for part in (*parts, promql[start:])]
    return [_ABSENT.sub(r"\1", part) for part in parts if not _NUMBER.fullmatch(part)]


def exported() -> set[str]:
    """The series that our processes export."""
    series = set()
    for metric in names.every_metric():
        parts = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        series |= {f"{metric.prometheus}{part}" for part in parts}
    return series


def recorded() -> set[str]:
    """The series that our rules record."""
    return {rule["record"] for rule in rules() if "record" in rule}
