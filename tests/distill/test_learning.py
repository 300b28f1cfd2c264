"""What is minimised: at its ends, and that it is what acceptance is made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from services.training.distill.batches import Batch
from services.training.distill.learning import loss_of, score_of

_P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
_Q = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])


def _batch(p: Tensor) -> Batch:
    """Whole laws [R, m] over the student's m columns, as they are stored."""
    columns = p.argsort(-1, descending=True)
    rows = torch.arange(len(p))
    return Batch(rows[None], rows, columns, p.gather(-1, columns), columns[:, 0])


def test_without_variation_it_is_the_divergence_of_the_laws():
    expected = (_P * (_P / _Q).log()).sum(-1).mean()
    assert loss_of(_Q.log(), _batch(_P), variation=0.0).item() == pytest.approx(
        expected.item(), abs=1e-6
    )


def test_with_variation_alone_it_is_twice_the_chance_of_a_rejection():
    loss = loss_of(_Q.log(), _batch(_P), variation=1.0).item()
    score = score_of(_Q.log(), _batch(_P))
    assert loss == pytest.approx(2 * (1 - score.acceptance), abs=1e-6)
    assert loss == pytest.approx((_P - _Q).abs().sum(-1).mean().item(), abs=1e-6)


@pytest.mark.parametrize("variation", [0.0, 0.75, 1.0])
def test_it_is_nothing_for_the_targets_own_law_and_something_for_another(variation):
    assert loss_of(_P.log(), _batch(_P), variation).item() == pytest.approx(0.0, abs=1e-6)
    assert loss_of(_Q.log(), _batch(_P), variation).item() > 0.1
