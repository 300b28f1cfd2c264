import math

import numpy as np
import pytest
import torch
from transformers.generation import logits_process

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.noise import to_exponential, word_rows
from services.engine.sampling import NO_CHOICE, RowContext, choose, log_law, paths
from tests.rules.chance import ALARM, p_value

torch.set_num_threads(1)
COUPLED, GREEDY = VerifyMode.COUPLED, VerifyMode.GREEDY


@pytest.fixture(params=["row by row", "the batch at once"], autouse=True)
def path(request, monkeypatch):
    monkeypatch.setattr(paths, "WIDE", 0 if request.param == "row by row" else 1 << 40)
    return request.param


def row(mode=COUPLED, seed=0, position=0, **sampling):
    return RowContext(mode, ResolvedSampling(**sampling), seed, position)


def random_logits(rows, vocab, seed=0, scale=4.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def transformers_law(logits, temperature=1.0, top_k=0, top_p=1.0, stop=(), left=0):
    """The law transformers would sample from; `left` = tokens missing to min_tokens."""
    text = torch.zeros(logits.shape[0], 5, dtype=torch.long)
    if left:
        logits = logits_process.MinNewTokensLengthLogitsProcessor(5, left, list(stop))(text, logits)
    logits = logits_process.TemperatureLogitsWarper(temperature)(text, logits)
    if top_k:
        logits = logits_process.TopKLogitsWarper(top_k)(text, logits)
    if top_p < 1.0:
        logits = logits_process.TopPLogitsWarper(top_p)(text, logits)
    return torch.softmax(logits, dim=-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 20, 3000])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_the_law_is_that_of_transformers(temperature, top_k, top_p):
    logits = random_logits(6, 2000)
    rows = [row(temperature=temperature, top_k=top_k, top_p=top_p)] * 6
    expected = transformers_law(logits, temperature, top_k, top_p)
    ours = log_law(logits, rows).exp()
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_a_nucleus_wider_than_the_first_guess_is_still_that_of_transformers():
    flat = random_logits(4, 5000, scale=0.3)
    flat[1] *= 30  # a narrow row beside wide ones
    ours = log_law(flat, [row(top_p=0.9)] * 4).exp()
    expected = transformers_law(flat, top_p=0.9)
    assert torch.equal(ours > 0, expected > 0)
    assert (ours[0] > 0).sum() > 2000
    assert (ours[1] > 0).sum() < 256


def test_min_tokens_masks_stop_ids_before_that_position_only():
    logits = random_logits(2, 50)
    stop = (3, 4)
    rows = [row(min_tokens=2, stop_token_ids=stop, position=p) for p in (1, 2)]
    ours = log_law(logits, rows).exp()
    torch.testing.assert_close(ours[:1], transformers_law(logits[:1], stop=stop, left=1))
    torch.testing.assert_close(ours[1:], transformers_law(logits[1:]))
    assert ours[0, 3] == 0


def test_tokens_that_tie_at_an_edge_stay_together():
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0]])
    assert (log_law(logits, [row(top_k=2)]) > -math.inf).tolist() == [[True, True, True, False]]
    assert (log_law(logits, [row(top_p=0.7)]) > -math.inf).tolist() == [[True, True, True, False]]


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.tensor([[0.0, 7.0, 1.0, 7.0], [9.0, 9.0, 9.0, 9.0]])
    assert choose(logits, [row(GREEDY)] * 2) == [1, 0]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("law", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_broken_row_gives_no_choice_and_its_neighbours_theirs(mode, broken, law):
    logits = random_logits(3, 600)
    rows = [row(mode, seed=i, **law) for i in range(3)]
    whole = choose(logits, rows)
    logits[1, 17] = broken
    assert choose(logits, rows) == [whole[0], NO_CHOICE, whole[2]]


def test_a_row_without_any_allowed_token_gives_no_choice():
    logits = torch.zeros(1, 2)
    assert choose(logits, [row(min_tokens=1, stop_token_ids=(0, 1))]) == [NO_CHOICE]


def test_a_certain_token_wins_whatever_its_noise():
    logits = torch.full((500, 30), -math.inf)
    logits[:, 11] = 0.0
    assert set(choose(logits, [row(seed=8, position=i) for i in range(500)])) == {11}


def test_a_token_outside_the_law_is_never_chosen():
    logits = random_logits(1, 300, scale=0.1).repeat(400, 1)
    chosen = choose(logits, [row(top_k=2, position=i) for i in range(400)])
    assert set(chosen) == set(torch.topk(logits[0], 2).indices.tolist())


@pytest.mark.parametrize("law", [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7}])
def test_coupled_choices_follow_the_law(law, path):
    draws = 50_000 if path == "the batch at once" else 3_000
    logits = random_logits(1, 8, seed=3, scale=1.0)
    rows = [row(seed=77, position=i, **law) for i in range(draws)]
    counts = np.bincount(choose(logits.expand(draws, -1), rows), minlength=8)
    assert p_value(counts, log_law(logits, rows[:1]).exp()[0]) > ALARM


def test_equal_laws_agree_and_close_laws_agree_mostly():
    logits = random_logits(1, 200, scale=2.0).repeat(2000, 1)
    rows = [row(seed=1, position=i) for i in range(2000)]
    near = logits + 0.1 * random_logits(1, 200, seed=9, scale=1.0)
    ours, same, other = choose(logits, rows), choose(logits.clone(), rows), choose(near, rows)
    assert ours == same
    overlap = torch.minimum(logits[0].softmax(-1), near[0].softmax(-1)).sum()
    agreement = sum(a == b for a, b in zip(ours, other, strict=True)) / 2000
    assert agreement > 0.95 * float(overlap / (2 - overlap))


@pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])
def test_a_row_to_be_verified_by_rejection_has_no_choice_of_its_own(mode):
    with pytest.raises(ValueError, match="choice of their own"):
        choose(torch.zeros(2, 4), [row(GREEDY), row(mode)])


def test_no_rows_give_no_choices_and_no_laws():
    assert choose(torch.zeros(0, 4), []) == []
    assert log_law(torch.zeros(0, 4), []).shape == (0, 4)


@pytest.mark.parametrize("top_p", [0.5, 0.999999])
def test_the_nucleus_of_a_flat_law_over_a_very_wide_vocabulary_is_found(top_p):
    logits = random_logits(1, 200_000, scale=0.01)
    kept = int((log_law(logits, [row(top_p=top_p)]) > -math.inf).sum())
    weights = torch.softmax(logits[0].double(), dim=-1).sort(descending=True).values
    assert kept == int((weights.cumsum(0) < top_p).sum()) + 1


def test_an_extreme_temperature_neither_overflows_nor_loses_the_law():
    logits = random_logits(1, 2000, scale=30.0)
    for temperature in (1e-3, 1e3):
        law = row(temperature=temperature, top_p=0.99)
        expected = transformers_law(logits.double(), temperature, top_p=0.99)
        ours = log_law(logits, [law]).exp().double()
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-9)
    assert choose(logits, [row(temperature=1e-3)] * 1) == [int(logits.argmax())]


def test_the_choice_is_the_exact_argmax_of_score_minus_log_noise():
    generator = torch.Generator().manual_seed(1)
    for case in range(300):
        logits = torch.randn(1, 3000, generator=generator) * (0.01, 3.0, 40.0)[case % 3] + 500.0
        temperature = (0.05, 1.0, 2.0)[case // 3 % 3]
        noise = to_exponential(word_rows([(case, 5)], torch.arange(3000)))
        exact = logits.double() / temperature - noise.log()
        chosen = choose(logits, [row(temperature=temperature, seed=case, position=5)])
        assert chosen == [int(exact.argmax())]
