"""Expressions are found wherever they stand; a real Prometheus answers them in `test_live.py`."""

import re
from pathlib import Path

import pytest
import yaml

from tests.monitoring.expressions import (
    SCALERS,
    Expression,
    exported,
    filled_in,
    in_dashboards,
    in_rules,
    in_scalers,
    operands,
    queries,
    recorded,
)


@pytest.mark.parametrize("expression", [*in_rules(), *in_dashboards(), *in_scalers()], ids=str)
def test_whatever_of_ours_is_read_is_exported_or_recorded(expression: Expression):
    """An alternative behind an `or` hides what has no value."""
    ours = set(
        re.findall(r"\b(?:paceline|gen_ai|spec_decode)_\w+|\bpaceline:[\w:]+", expression.promql)
    )
    assert ours
    assert ours <= exported() | recorded()


def test_dashboards_work_without_the_rules():
    asked = [expression.promql for expression in in_dashboards()]
    assert asked
    assert [(name, promql) for name in recorded() for promql in asked if name in promql] == []


@pytest.mark.parametrize("folder", [one for one in SCALERS if one.exists()], ids=lambda f: f.name)
def test_every_scaler_is_found_with_its_queries(folder: Path):
    assert [expression for expression in in_scalers() if expression.source.startswith(folder.name)]
    scaled = [
        document
        for file in folder.rglob("*.yaml")
        for document in yaml.safe_load_all(file.read_text())
        if document and document.get("kind") == "ScaledObject"
    ]
    assert all(list(queries(document)) for document in scaled)


def test_the_queries_of_keda_and_of_the_prometheus_adapter_are_found():
    scaled = {"spec": {"triggers": [{"metadata": {"query": "sum(up)", "threshold": "3"}}]}}
    rule = {
        "seriesQuery": 'paceline_queue_tokens{role="verifier"}',
        "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
    }
    adapter = {"data": {"config.yaml": yaml.safe_dump({"externalRules": [rule]})}}
    assert list(queries(scaled)) == ["sum(up)"]
    assert list(queries([adapter])) == ["sum(paceline_queue_tokens{}) by (pod)"]


def test_a_variable_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="a variable is left"):
        filled_in('up{pod="$pod"}', {"$role": ".*"})


@pytest.mark.parametrize(
    ("promql", "parts"),
    [
        ("a > 5", ["a"]),
        ("sum(a > 1) / b >= 0.5", ["sum(a > 1) / b"]),
        ('a{x!="or"} == 0 and b < 0.5 * c', ['a{x!="or"}', "b", "0.5 * c"]),
        ("a < 1e-3 or d[5m] unless e", ["a", "d[5m]", "e"]),
        ("absent(a{x='1'})", ["a{x='1'}"]),
    ],
)
def test_an_alert_is_taken_apart_where_it_compares(promql, parts):
    assert operands(promql) == parts
