"""Every PromQL expression below k8s/."""

import json
import re
from collections.abc import Collection, Iterator
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
KEDA = ROOT / "k8s" / "components" / "keda"
TIERS = ("orchestrator", "drafter", "verifier")
SCALERS = {tier: yaml.safe_load((KEDA / f"{tier}.yaml").read_text())["spec"] for tier in TIERS}
"""The `spec` of each tier's ScaledObject; the Prometheus adapter asks the same (tests/k8s)."""

# What Grafana puts in.
_VARIABLES = {"$__rate_interval": "30s", "$role": ".*"}
_COMPARISON = re.compile(r" ([<>]|==) (?=[\d.])")
_ABSENT = re.compile(r"absent\((.*)\)")


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
    """What is recorded, and alerts with `> bool` for `>`: an alert is silent when all is well."""
    for rule in rules():
        if "record" in rule:
            yield Expression(rule["record"], rule["expr"])
        else:
            compared = _COMPARISON.sub(r" \1 bool ", rule["expr"])
            yield Expression(f"alert {rule['alert']}", _ABSENT.sub(r"\1", compared))


def in_dashboards() -> Iterator[Expression]:
    for file in DASHBOARDS:
        for panel in panels(dashboard(file)):
            for target in panel.get("targets", ()):
                source = f"{file.stem}: {panel['title']} {target['refId']}"
                promql = target["expr"]
                for variable, value in _VARIABLES.items():
                    promql = promql.replace(variable, value)
                yield Expression(source, promql)


def in_scalers() -> Iterator[Expression]:
    for tier, scaler in SCALERS.items():
        for trigger in scaler["triggers"]:
            yield Expression(f"{tier} {trigger['name']}", trigger["metadata"]["query"])


def exported() -> dict[str, Collection[str]]:
    """The labels of each series that our processes export."""
    series = {}
    for metric in names.every_metric():
        parts = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        series |= {f"{metric.prometheus}{part}": metric.labels for part in parts}
    return series


def recorded() -> set[str]:
    """The series that our rules record."""
    return {rule["record"] for rule in rules() if "record" in rule}
