"""Expressions are found wherever they stand, and name only what there is."""

from pathlib import Path

import pytest
import yaml

from tests.monitoring.expressions import (
    SCALERS,
    exported,
    filled_in,
    in_dashboards,
    in_rules,
    in_scalers,
    metrics_in,
    operands,
    queries,
    recorded,
)


@pytest.mark.parametrize("expression", [*in_rules(), *in_scalers()], ids=str)
def test_rules_and_scalers_read_what_is_exported_or_recorded(expression):
    assert metrics_in(expression.promql)
    assert metrics_in(expression.promql) <= exported() | recorded()


@pytest.mark.parametrize("expression", [*in_dashboards()], ids=str)
def test_dashboards_read_what_is_exported_and_work_without_the_rules(expression):
    assert metrics_in(expression.promql)
    assert metrics_in(expression.promql) <= exported()


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


@pytest.mark.parametrize(
    ("promql", "read"),
    [
        (
            'sum by (role) (rate(a_total{role=~"b|c"}[5m])) / on () group_left () d',
            {"a_total", "d"},
        ),
        ("histogram_quantile(0.95, sum by (le) (rate(e_bucket[$__rate_interval])))", {"e_bucket"}),
        ("1 + level:metric:rate5m or vector(0)", {"level:metric:rate5m"}),
        ("deriv(a[10m]) > 1e3 and b offset 5m", {"a", "b"}),
    ],
)
def test_the_metrics_of_an_expression_are_read_off_it(promql, read):
    assert metrics_in(promql) == read
