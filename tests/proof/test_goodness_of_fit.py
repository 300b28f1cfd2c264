"""The test of a text against its law: it lets the right ones pass and catches the wrong ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from services.contract.types import ResolvedSampling
from tests.proof import two_token_models as models
from tests.proof.goodness_of_fit import ALARM, Text, chi_square_tail, fit

LAW = models.law_of(models.target_model(), ResolvedSampling())


def drawn(law: np.ndarray, tokens: int, seed: int, repeat: float = 0.0) -> list[Text]:
    """Texts of 400 tokens; `repeat` is how often a position takes the noise of the one before."""
    noise = np.random.default_rng(seed)
    texts = noise.integers(models.VOCAB, size=(tokens // 400, 402))
    steps = law.cumsum(-1)
    u = noise.random(len(texts))
    for at in range(2, 402):
        u = np.where(noise.random(len(texts)) < repeat, u, noise.random(len(texts)))
        rows = steps[texts[:, at - 2], texts[:, at - 1]]
        texts[:, at] = (rows < u[:, None] * rows[:, -1:]).sum(-1)
    return [Text(tuple(row[:2]), tuple(row[2:])) for row in texts.tolist()]


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841459, 1, 0.05), (18.30704, 10, 0.05), (29.58830, 10, 0.001), (124.3421, 100, 0.05)],
)
def test_the_tail_of_chi_square_is_that_of_the_printed_tables(statistic, freedom, tail):
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=1e-4)


def test_the_tail_goes_down_to_where_the_alarm_rings_and_far_beyond():
    poisson = sum(40.0**i / math.factorial(i) for i in range(10)) * math.exp(-40.0)
    assert poisson < ALARM / 100
    assert chi_square_tail(80.0, 20) == pytest.approx(poisson, rel=1e-9)
    assert chi_square_tail(2000.0, 20) == 0.0
    assert chi_square_tail(5.0, 0) == 1.0


def test_a_million_tokens_of_the_law_itself_pass():
    told = fit(drawn(LAW, 1_600_000, seed=1), LAW)
    assert told.tokens == 1_600_000
    assert told.p_value > 1e-3


def test_the_p_values_of_true_samples_are_spread_evenly():
    fits = [fit(drawn(LAW, 8_000, seed), LAW, seed) for seed in range(100)]
    for values in ([f.contexts for f in fits], [f.uniform for f in fits]):
        low = sum(value < 0.1 for value in values)
        assert 2 <= low <= 22
    assert 2 <= sum(f.neighbours < 0.1 for f in fits) <= 22
    assert sum(f.p_value < 0.01 for f in fits) <= 6


def test_a_hundredth_of_the_mass_in_the_wrong_place_fails():
    wrong = LAW.copy()
    best = wrong.argmax(-1)[..., None]
    moved = np.minimum(0.01, np.take_along_axis(wrong, best, -1))
    np.put_along_axis(wrong, best, np.take_along_axis(wrong, best, -1) - moved, -1)
    wrong += moved / models.VOCAB
    assert abs(wrong - LAW).sum(-1).mean() / 2 < 0.0101
    assert fit(drawn(wrong, 1_600_000, seed=2), LAW).p_value < ALARM


def test_noise_that_is_used_twice_now_and_then_fails_by_its_neighbours():
    assert fit(drawn(LAW, 100_000, seed=3, repeat=0.05), LAW).neighbours < ALARM


def test_one_wrong_context_of_all_is_seen_alone():
    after = [text.output[-2:] for text in drawn(LAW, 40_000, seed=6)]
    a, b = max(after, key=after.count)
    wrong = LAW.copy()
    wrong[a, b] = 0.8 * LAW[a, b] + 0.2 * np.roll(LAW[a, b], 1)
    told = fit(drawn(wrong, 100_000, seed=4), LAW)
    assert told.worst_context < ALARM


def test_one_token_of_probability_zero_is_enough():
    cut = models.law_of(models.target_model(), ResolvedSampling(top_k=3))
    texts = drawn(cut, 4000, seed=5)
    assert fit(texts, cut).p_value > ALARM
    a, b = texts[0].output[-2:]
    wrong = Text(texts[0].prompt, (*texts[0].output, int(cut[a, b].argmin())))
    told = fit([*texts[1:], wrong], cut)
    assert (told.impossible, told.p_value) == (1, 0.0)


def test_the_law_of_the_model_is_that_of_its_last_two_tokens():
    import torch

    model = models.target_model()
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(models.VOCAB, (1, models.CONTEXT // 2), generator=source)
    with torch.no_grad():
        long = model(ids).logits[0, 1:].double().numpy()
    seen = ids[0].numpy()
    assert np.abs(long - models.raw_logits(model)[seen[:-1], seen[1:]]).max() < 1e-3


def test_laws_differ_from_each_other_and_those_of_the_draft_overlap_with_them_by_half():
    rows = LAW.reshape(-1, models.VOCAB)
    assert rows.max(-1).mean() > 0.4
    assert np.abs(rows[:, None] - rows[None]).sum(-1).mean() / 2 > 0.5
    assert 0.4 < models.overlap(LAW, models.law_of(models.draft_model(), ResolvedSampling())) < 0.7


@pytest.mark.parametrize(
    "sampling",
    [
        ResolvedSampling(temperature=0.7),
        ResolvedSampling(temperature=1.3, top_k=4),
        ResolvedSampling(top_p=0.8),
        ResolvedSampling(top_k=6, top_p=0.9, min_p=0.05),
    ],
    ids=["temperature", "top_k", "top_p", "all"],
)
def test_the_table_follows_the_logits_processors_of_transformers(sampling):
    import torch
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    scores = torch.from_numpy(models.raw_logits(models.target_model()).reshape(-1, models.VOCAB))
    theirs = torch.softmax(warpers(None, scores), dim=-1).numpy()
    ours = models.law_of(models.target_model(), sampling).reshape(-1, models.VOCAB)
    assert np.abs(ours - theirs).max() < 1e-9
