"""What is minimised: at its ends, and that it is what acceptance is made of."""

from __future__ import annotations

import pytest
import torch

from services.training.learning import distance, score_of

_P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
_Q = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
_COLUMNS = _P.argsort(-1, descending=True)
_SORTED = _P.gather(-1, _COLUMNS)


def loss_of(q: torch.Tensor, variation: float) -> float:
    return distance(q.log(), _COLUMNS, _SORTED, variation).mean().item()


def test_without_variation_it_is_the_divergence_of_the_laws():
    expected = (_P * (_P / _Q).log()).sum(-1).mean()
    assert loss_of(_Q, 0.0) == pytest.approx(expected.item(), abs=1e-6)


def test_with_variation_alone_it_is_twice_the_chance_of_a_rejection():
    score = score_of(_Q.log(), _COLUMNS, _SORTED, _COLUMNS[:, 0])
    assert loss_of(_Q, 1.0) == pytest.approx(2 * (1 - score.acceptance), abs=1e-6)
    assert loss_of(_Q, 1.0) == pytest.approx((_P - _Q).abs().sum(-1).mean().item(), abs=1e-6)


@pytest.mark.parametrize("variation", [0.0, 0.75, 1.0])
def test_it_is_nothing_for_the_targets_own_law_and_something_for_another(variation):
    assert loss_of(_P, variation) == pytest.approx(0.0, abs=1e-6)
    assert loss_of(_Q, variation) > 0.1
