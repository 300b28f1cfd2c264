"""How long a forward takes."""

from __future__ import annotations

import pytest

from services.engine.synthetic.costs import Costs
from tests.synthetic.kit import spec

COSTS = Costs(20.0, 25.0, row_ms=0.5, session_ms=2.0, prompt_ms=12.0, prompt_token_ms=0.25)


@pytest.mark.parametrize(
    ("rows", "prompt_tokens", "expected"),
    [
        ([1], 0, 20.0),
        ([6], 0, 25.0 + 5 * 0.5),
        ([1, 1, 1], 0, 20.0 + 2 * 2.0),
        ([1, 3], 0, 25.0 + 2 * 0.5 + 2.0),
        ([0], 40, 12.0 + 10.0),
        ([1, 0], 40, 20.0 + 10.0),
    ],
)
def test_a_forward_takes_its_base_and_what_comes_on_top(rows, prompt_tokens, expected):
    assert COSTS.forward_ms(rows, prompt_tokens) == pytest.approx(expected)


def test_of_any_size_a_forward_takes_the_same_where_nothing_comes_on_top():
    costs = Costs(20.0, 25.0)
    assert {costs.forward_ms([rows]) for rows in range(2, 60)} == {25.0}


def test_a_forward_of_prompts_alone_takes_at_least_a_plain_one_unless_told_otherwise():
    assert spec().verifier.costs().prompt_ms == 20.0
    assert spec().drafter.costs().prompt_ms == 5.0


def test_every_forward_of_a_drafter_takes_the_same_time():
    costs = spec().drafter.costs()
    assert costs.forward_ms([1]) == costs.forward_ms([3]) == 5.0
