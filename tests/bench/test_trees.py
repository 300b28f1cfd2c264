"""Tokens per verification by the shape of the draft."""

import pytest
import torch

from research.accepted_lengths import answers
from research.thinned_draft import Text
from research.trees import (
    CANDIDATES,
    Costs,
    comb,
    hit_rates,
    ranks_of,
    shapes,
    show,
    tokens_per_round,
)
from services.contract.types import VerifyMode
from services.drafter.methods.graph.tree_shape import TreeShape
from services.engine.native import NativeEngine
from tests.models import tiny_model

EXACT = (VerifyMode.GREEDY, VerifyMode.COUPLED)
RANKS = [[0, 1, 0, None, 0, 0], [1, 0]]


def engine(seed: int) -> NativeEngine:
    return NativeEngine.from_model(tiny_model("llama", seed=seed), check=False)


def test_a_comb_is_a_trunk_of_first_candidates_with_others_beside_them() -> None:
    assert comb(3, 2).parents == (-1, -1, -1, 0, 0, 0)
    assert (comb(3, 2).ranks, comb(1, 3).parents) == ((0, 1, 2, 0, 1, 2), (-1, 0, 1))


@pytest.mark.parametrize(
    ("shape", "rounds"),
    [
        (TreeShape(), 8),
        (comb(1, 1), 3 + 2),
        (comb(1, 2), 3 + 2),
        (comb(2, 1), 3 + 1),
        (comb(2, 3), 3 + 1),
        (TreeShape((-1, -1, 0, 2), (0, 1, 1, 0)), 2 + 1),
    ],
)
def test_a_verification_goes_down_to_the_first_token_that_is_no_candidate(shape, rounds):
    assert tokens_per_round(shape, RANKS) == pytest.approx(8 / rounds)


def test_hit_rates_are_shares_of_all_places() -> None:
    assert hit_rates(RANKS)[:3] == pytest.approx((5 / 8, 2 / 8, 0.0))


@pytest.mark.parametrize("mode", EXACT)
def test_the_target_as_its_own_draft_hits_with_its_first_candidate(mode: VerifyMode) -> None:
    target = engine(0)
    texts = answers(target, [[5, 6, 7], [8, 9]], 12, mode)
    for seed, text in enumerate(texts):
        assert set(ranks_of(target, text, mode, seed)) == {0}


def test_another_draft_hits_less_and_never_beyond_its_candidates() -> None:
    ranks = ranks_of(engine(1), Text(torch.arange(5, 25)[None], 8), VerifyMode.GREEDY, 0)
    assert len(ranks) == 25 - 5 - 8
    assert all(rank is None or rank < CANDIDATES for rank in ranks)
    assert None in ranks


def test_a_level_costs_where_the_verifier_waits_for_it_and_nodes_always_do() -> None:
    costs = Costs(node=0.1, level=0.5)
    assert costs.speed(2.0, comb(2, 1), waits=True) == pytest.approx(2.0 / 1.7)
    assert costs.speed(2.0, comb(2, 1), waits=False) == pytest.approx(2.0 / 1.2)


def test_the_table_has_a_line_for_every_shape() -> None:
    costs = Costs(0.02, 0.2)
    rows = [
        {
            "shape": name,
            "nodes": len(shape),
            "levels": shape.depth,
            "tokens": 1.5,
            "waits": 1.0,
            "hidden": 1.1,
        }
        for name, shape in shapes((0.4, 0.1, 0.05), costs)
    ]
    table = show({"coverage": [0.4, 0.5], "shapes": rows})
    assert all(f"\n{row['shape']}" in table for row in rows)
