"""What expressions ask for is there; a real Prometheus answers them in `test_live.py`."""

import re

import pytest

from tests.monitoring.expressions import (
    Expression,
    exported,
    in_dashboards,
    in_rules,
    in_scalers,
    recorded,
)

each = pytest.mark.parametrize(
    "expression", [*in_rules(), *in_dashboards(), *in_scalers()], ids=str
)


@each
def test_whatever_of_ours_is_read_is_exported_or_recorded(expression: Expression):
    """An alternative behind an `or` hides what has no value."""
    ours = set(
        re.findall(r"\b(?:paceline|gen_ai|spec_decode)_\w+|\bpaceline:[\w:]+", expression.promql)
    )
    assert ours
    assert ours <= exported().keys() | recorded()


@each
def test_every_label_that_is_asked_for_is_one_of_the_metric(expression: Expression):
    for name, label in re.findall(r"(\w+)\{(\w+)[=!]", expression.promql):
        assert label in exported()[name]


def test_dashboards_work_without_the_rules():
    asked = [expression.promql for expression in in_dashboards()]
    assert asked
    assert [(name, promql) for name in recorded() for promql in asked if name in promql] == []
