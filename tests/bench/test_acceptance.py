"""Expected acceptance of the rules, against what is known of them, on answers of the target."""

from itertools import product

import numpy as np
import pytest
import torch

from bench.acceptance import _of_length, chained, show
from bench.accepted_lengths import (
    Pair,
    Study,
    block_survival,
    standard_survival,
)
from services.engine.native import NativeEngine
from services.training.texts import Text
from tests.models import tiny_model

STUDY = Study(length=4, stride=3, chains=3, support=320)
NOTHING = np.zeros((0, 0))
TEXT = Text(0, np.arange(5, 25, dtype=np.int32), np.array([8], np.int32), NOTHING, NOTHING)


def expected(survival, p: list[float], q: list[float], length: int) -> float:
    """Accepted tokens of a block, over every draft of independent tokens."""
    total = 0.0
    for draft in product(range(len(p)), repeat=length):
        ratios = torch.tensor([[p[x] / q[x] for x in draft]], dtype=torch.float64)
        chance = torch.tensor([q[x] for x in draft], dtype=torch.float64).prod()
        total += float(chance * survival(ratios).sum())
    return total


def test_the_example_of_the_block_verification_paper():
    p, q = [1 / 3, 2 / 3], [2 / 3, 1 / 3]
    assert expected(standard_survival, p, q, 2) == pytest.approx(10 / 9)
    assert expected(block_survival, p, q, 2) == pytest.approx(11 / 9)


def test_block_verification_never_expects_fewer_and_the_same_of_one_token():
    ratios = torch.rand(500, 6, dtype=torch.float64) * 3
    standard, block = standard_survival(ratios), block_survival(ratios)
    assert (block >= standard - 1e-12).all()
    assert torch.equal(block[:, 0], standard[:, 0])
    assert (block[:, 1:] > standard[:, 1:] + 1e-3).any()


def engine(seed: int) -> NativeEngine:
    return NativeEngine.from_model(tiny_model("llama", seed=seed), check=False)


def test_a_draft_model_that_is_the_target_is_accepted_whole():
    survival = Pair(engine(0), engine(0), STUDY).survival(TEXT)
    for rule, chances in survival.items():
        assert chances == pytest.approx([1.0] * 4, abs=1e-4), rule


def test_another_draft_model_is_accepted_less_the_further_it_drafts():
    survival = Pair(engine(0), engine(1), STUDY).survival(TEXT)
    for rule, chances in survival.items():
        assert chances[0] < 0.9, rule
        assert chances == sorted(chances, reverse=True), rule
    assert sum(survival["block"]) >= sum(survival["standard"])


def test_chained_blocks_emit_no_bonus_unless_they_are_coupled():
    assert chained("standard", [1.0, 1.0]) == 2.0
    assert chained("coupled", [1.0, 1.0]) == 3.0
    assert chained("block", [0.0, 0.0]) == chained("coupled", [0.0, 0.0]) == 1.0


def test_the_report_has_a_line_for_each_length():
    each = [
        {"standard": [0.6, 0.3], "block": [0.6, 0.4], "coupled": [0.5, 0.2]},
        {"standard": [0.8, 0.5], "block": [0.8, 0.6], "coupled": [0.7, 0.4]},
    ]
    lines = show({"by_length": [_of_length(each, length) for length in (1, 2)]}).splitlines()
    assert "1.100 ± 0.200" in lines[2]
    assert "0.100 ± 0.000" in lines[2]
    assert "2.100/1.700" in lines[-1]
    assert "1.900/1.900" in lines[-1]
