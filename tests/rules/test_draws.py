"""Best tokens, cut laws and draws from them."""

import math

import numpy as np
import pytest
import torch

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine import sampling as sampler
from services.engine.sampling.laws import draw_in_parallel
from tests.rules.chance import ALARM, p_value

torch.set_num_threads(1)
BELOW_ONE = 1.0 - 2.0**-53


@pytest.fixture(params=["row by row", "the batch at once"], autouse=True)
def path(request, monkeypatch):
    monkeypatch.setattr(sampler.paths, "WIDE", 0 if request.param == "row by row" else 1 << 40)


def row(mode=VerifyMode.COUPLED, seed=0, position=0, **sampling):
    return sampler.RowContext(mode, ResolvedSampling(**sampling), seed, position)


def random_logits(rows, vocab, seed=0, scale=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


# --- best tokens --------------------------------------------------------------------


def test_the_best_tokens_come_best_first_and_the_lower_id_first_in_a_tie():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0, -math.inf]])
    greedy = row(VerifyMode.GREEDY)
    assert sampler.best(logits, [greedy], 2).tolist() == [[1, 2]]
    assert sampler.best(logits, [greedy], 4).tolist() == [[1, 2, 4, 3]]
    assert sampler.best(logits, [greedy], 7).tolist() == [
        [1, 2, 4, 3, 0, sampler.NO_CHOICE, sampler.NO_CHOICE]
    ]


def test_the_first_of_the_best_is_the_choice():
    logits = random_logits(40, 500)
    greedy = [row(VerifyMode.GREEDY)] * 40
    coupled = [row(seed=i, temperature=0.8, top_p=0.9) for i in range(40)]
    assert sampler.best(logits, greedy, 3)[:, 0].tolist() == sampler.choose(logits, greedy)
    for count in (1, 3):
        assert sampler.coupled_best(logits, coupled, count)[:, 0].tolist() == sampler.choose(
            logits, coupled
        )


def test_the_second_of_the_coupled_best_is_the_choice_once_the_first_is_gone():
    logits = random_logits(60, 300, scale=1.0)
    rows = [row(seed=i, position=3) for i in range(60)]
    found = sampler.coupled_best(logits, rows, 4)
    for rank in range(4):
        assert sampler.choose(logits, rows) == found[:, rank].tolist()
        logits.scatter_(1, found[:, rank : rank + 1], -torch.inf)


def test_the_coupled_best_stay_inside_the_law_and_end_with_it():
    found = sampler.coupled_best(
        random_logits(50, 300), [row(top_k=2, position=i) for i in range(50)], 4
    )
    kept = torch.topk(random_logits(50, 300), 2).indices
    assert torch.equal(found[:, :2].sort().values, kept.sort().values)
    assert (found[:, 2:] == sampler.NO_CHOICE).all()


@pytest.mark.parametrize("vocab", [5, 3000])
def test_a_token_that_may_not_be_chosen_is_never_among_the_best(vocab):
    logits = torch.full((1, vocab), -math.inf)
    logits[0, [1, 4]] = 0.0
    assert set(sampler.coupled_best(logits, [row()], 3)[0].tolist()) == {1, 4, sampler.NO_CHOICE}
    assert sampler.best(logits, [row()], 3).tolist() == [[1, 4, sampler.NO_CHOICE]]


def test_the_coupled_best_two_are_a_draw_without_replacement():
    draws = 50_000 if sampler.paths.WIDE else 3_000
    law = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    rows = [row(position=i) for i in range(draws)]
    found = sampler.coupled_best(law.log().float().expand(draws, -1), rows, 2)
    second = law / (1 - law[:, None])
    expected = law[:, None] * second.fill_diagonal_(0.0)
    counts = torch.bincount(found[:, 0] * 4 + found[:, 1], minlength=16)
    assert p_value(counts, expected.flatten()) > ALARM


@pytest.mark.parametrize("function", [sampler.best, sampler.coupled_best])
def test_no_rows_have_no_best_tokens(function):
    assert function(torch.zeros(0, 9), [], 3).shape == (0, 3)


# --- the cut law --------------------------------------------------------------------


@pytest.mark.parametrize("law", [{}, {"temperature": 0.6, "top_p": 0.95}, {"top_k": 3}])
def test_the_top_law_is_the_law_cut_and_renormalised(law):
    logits = random_logits(5, 400)
    rows = [row(**law)] * 5
    ids, mass = sampler.top_law(logits, rows, 16)
    assert ids.dtype == torch.int64
    assert mass.dtype == torch.float32
    whole = sampler.log_law(logits, rows).double().exp()
    expected = whole.sort(descending=True, stable=True)
    cut = expected.values[:, :16] / expected.values[:, :16].sum(-1, keepdim=True)
    torch.testing.assert_close(mass.double(), cut, rtol=1e-5, atol=1e-9)
    assert torch.equal(ids[cut > 0], expected.indices[:, :16][cut > 0])
    assert (ids[cut == 0] == 0).all()
    assert (mass.double().sum(-1) - 1).abs().max() < 1e-6


def test_the_top_law_breaks_ties_by_the_lowest_id_and_pads():
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0]])
    ids, mass = sampler.top_law(logits, [row()], 2)
    assert (ids.tolist(), mass.tolist()) == ([[1, 2]], [[0.5, 0.5]])
    ids, mass = sampler.top_law(logits, [row(top_k=1)], 5)
    assert ids.tolist() == [[1, 2, 3, 0, 0]]
    torch.testing.assert_close(mass, torch.tensor([[1, 1, 1, 0, 0]]) / 3)


def test_no_rows_have_no_top_law():
    assert [part.shape for part in sampler.top_law(torch.zeros(0, 9), [], 3)] == [(0, 3), (0, 3)]


# --- draws --------------------------------------------------------------------------


@pytest.fixture(params=[sampler.draw, draw_in_parallel])
def inverse(request):
    return request.param


def test_a_draw_takes_the_first_index_whose_cumulated_mass_exceeds_u(inverse):
    p = torch.tensor([0.25, 0.0, 0.5, 0.25])
    numbers = [0.0, 0.25 - 2.0**-54, 0.25, 0.75 - 2.0**-53, 0.75, BELOW_ONE]
    assert inverse(p.expand(6, -1), numbers) == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-300, 1e300])
def test_a_mass_of_zero_is_never_drawn_at_either_end(scale, inverse):
    p = torch.tensor([[0.0, 0.0, 0.1, 0.0, 0.7, 0.0, 0.0]], dtype=torch.float64) * scale
    assert inverse(p, [0.0]) == [2]
    assert inverse(p, [BELOW_ONE]) == [4]


def test_a_draw_beside_uneven_totals_never_falls_off_the_end(inverse):
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(500, 37, generator=generator).pow(8)
    p[:, 30:] = 0.0
    drawn = inverse(p, [BELOW_ONE] * 500)
    assert max(drawn) < 30
    assert all(p[i, index] > 0 for i, index in enumerate(drawn))


def test_the_smallest_mass_there_is_can_be_drawn_alone(inverse):
    p = torch.zeros(1, 4, dtype=torch.float64)
    p[0, 2] = 5e-324
    assert inverse(p, [0.0]) == [2]
    assert inverse(p, [0.4]) == [2]


@pytest.mark.parametrize("row", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1.0, math.nan]])
def test_a_row_without_a_finite_mass_gives_no_choice_and_its_neighbour_its_own(row, inverse):
    assert inverse(torch.tensor([row, [0.0, 1.0]]), [0.5, 0.5]) == [sampler.NO_CHOICE, 1]


def test_a_sum_that_rounds_unevenly_in_parallel_never_points_at_a_mass_of_zero(monkeypatch):
    uneven = torch.tensor([[0.5, 0.5 + 2.0**-53, 0.5, 1.0, 1.0 + 2.0**-52]], dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda self, dim: uneven.clone())
    p = torch.tensor([[0.5, 0.0, 0.0, 0.5, 0.0]])
    assert draw_in_parallel(p, [0.5]) == [3]
    assert draw_in_parallel(p, [BELOW_ONE]) == [3]


def test_draws_follow_the_law(inverse):
    p = torch.tensor([0.4, 0.0, 0.35, 0.2, 0.049, 0.001])
    numbers = np.random.default_rng(5).random(200_000)
    drawn = [index for u in numbers.reshape(200, -1) for index in inverse(p.expand(1000, -1), u)]
    assert p_value(np.bincount(drawn, minlength=6), p) > ALARM


def test_a_law_of_float32_is_cumulated_in_float64():
    p = torch.full((1, 1 << 16), 2.0**-16)
    p[0, 0] = 2.0**8
    total = float(p.double().sum())
    # In float32 the small masses would all be lost beside the first.
    assert sampler.draw(p, [(2.0**8 + 0.5) / total]) == [(1 << 15) + 1]
