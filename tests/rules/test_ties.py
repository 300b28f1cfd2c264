"""Which choices are near-ties, and that to ask for it changes no choice."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.noise import to_exponential, word_rows
from services.engine.sampling import NO_CHOICE, RowContext, choose, choose_closely, paths, rounding
from services.engine.sampling.head import PartHead

torch.set_num_threads(1)
COUPLED, GREEDY = VerifyMode.COUPLED, VerifyMode.GREEDY
NEAR = 0.125
"""A threshold that float32 adds and takes away exactly."""


@pytest.fixture(params=["row by row", "the batch at once"], autouse=True)
def path(request, monkeypatch):
    monkeypatch.setattr(paths, "WIDE", 0 if request.param == "row by row" else 1 << 40)
    return request.param


def row(mode=GREEDY, position=0, **sampling):
    return RowContext(mode, ResolvedSampling(**sampling), 5, position)


def greedily(scores, path=(), matcher=None, **sampling):
    context = replace(row(**sampling), path=path, matcher=matcher)
    [found] = choose_closely(torch.tensor([scores]), [context], NEAR)
    return found


class Allowing:
    """A form that allows some tokens everywhere."""

    def __init__(self, *tokens):
        self._tokens = list(tokens)

    def mask(self, path):
        mask = np.zeros(3, dtype=bool)
        mask[self._tokens] = True
        return mask

    def must_end(self, path):
        return False


@pytest.mark.parametrize(
    ("scores", "near"),
    [
        ([0.0, 3.0, 3.0], True),
        ([0.0, 3.0, 2.875], True),
        ([0.0, 2.75, 3.0], False),
        ([0.0, 3.0, -math.inf], False),
        ([-3.0, -math.inf, -math.inf], False),
        ([-3.0], False),
    ],
    ids=["tie", "within", "beyond", "winner", "alone", "one token"],
)
def test_the_margin_of_the_two_best_logits_decides(scores, near):
    assert greedily(scores) == (int(np.argmax(scores)), near)


@pytest.mark.parametrize(
    "sampling",
    [
        {"logit_bias": ((1, -1.0),)},
        {"path": (1,), "frequency_penalty": 1.0},
        {"path": (1,), "repetition_penalty": 1.5},
        {"min_tokens": 4, "stop_token_ids": (1,)},
        {"matcher": Allowing(0, 2)},
    ],
    ids=["bias", "frequency", "repetition", "min_tokens", "form"],
)
def test_a_tie_that_the_adjustments_break_is_none(sampling):
    tied = [0.0, 3.0, 3.0]
    assert greedily(tied) == (1, True)
    assert greedily(tied, **sampling) == (2, False)


def test_a_tie_that_the_adjustments_make_is_one():
    assert greedily([0.0, 4.0, 3.0]) == (1, False)
    assert greedily([0.0, 4.0, 3.0], logit_bias=((2, 1.0),)) == (1, True)
    assert greedily([0.0, 4.0, 3.0], path=(1,), presence_penalty=1.0) == (1, True)
    assert greedily([3.0, 9.0, 3.0], matcher=Allowing(0, 2)) == (0, True)


def gumbels(width, position=0):
    """The noise of a row of `row`."""
    words = word_rows([(5, position)], torch.arange(width))
    return -to_exponential(words).log_()[0]


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("width", [6, 5000])
def test_a_coupled_margin_is_that_of_logits_and_noise_in_units_of_logits(temperature, width):
    noise = temperature * gumbels(width)
    for gap, near in ((0.0, True), (0.9 * NEAR, True), (1.2 * NEAR, False)):
        # All far behind, but for two whose logits undo their noise to the gap.
        scores = -50.0 - noise
        scores[3], scores[4] = -noise[3], -noise[4] - gap
        asked = [row(COUPLED, temperature=temperature)]
        [(token, said)] = choose_closely(scores.float()[None], asked, NEAR)
        assert said is near
        assert token == 3 or not gap


def test_what_top_k_leaves_out_is_nobodys_tie():
    noise = gumbels(5000)
    scores = -50.0 - noise
    scores[3], scores[4] = -noise[3], -noise[4]
    kept = int(scores[3] < scores[4]) + 3
    for top_k, near in ((2, True), (1, False)):
        [found] = choose_closely(scores.float()[None], [row(COUPLED, top_k=top_k)], NEAR)
        assert found[1] is near
        assert near or found[0] == kept


@pytest.mark.parametrize("width", [40, 6000])
def test_no_choice_differs_from_those_of_choose_and_near_ones_are_those_by_the_definition(width):
    rng = torch.Generator().manual_seed(width)
    logits = torch.randn(60, width, generator=rng) * 2
    laws = [{}, {"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 20, "temperature": 1.5}]
    modes = [(GREEDY, COUPLED)[i % 2] for i in range(60)]
    rows = [row(mode, i, **laws[i // 2 % 4]) for i, mode in enumerate(modes)]
    found = choose_closely(logits, rows, NEAR)
    assert [token for token, _ in found] == choose(logits, rows)
    assert [near for _, near in found] == [
        near_by_definition(*each) for each in zip(logits, rows, strict=True)
    ]
    assert {near for _, near in found} == {True, False}


def near_by_definition(logits, context):
    scores = logits.double()
    if context.mode is COUPLED:
        law = context.sampling
        order = scores.sort(descending=True)
        kept = torch.ones_like(scores, dtype=torch.bool)
        if law.top_k:
            kept &= scores >= order.values[law.top_k - 1]
        if law.top_p < 1:
            mass = torch.softmax(order.values / law.temperature, -1).cumsum(-1)
            kept &= scores >= order.values[int((mass < law.top_p).sum())]
        scores = scores + law.temperature * gumbels(len(scores), context.position)
        scores = scores.masked_fill(~kept, -math.inf)
    first, second = scores.topk(2).values.tolist()
    return first - second <= NEAR


def test_a_row_without_a_law_spoils_no_other():
    logits = torch.tensor([[0.0, 1.0, 1.0], [0.0, math.nan, 1.0], [1.0, 0.0, 1.0]])
    for mode in (GREEDY, COUPLED):
        rows = [row(mode)] * 3
        whole = choose_closely(logits[[0, 2]], rows[:2], NEAR)
        found = choose_closely(logits, rows, NEAR)
        assert found[1][0] == NO_CHOICE
        assert [found[0], found[2]] == whole


def test_columns_of_a_part_of_the_vocabulary_are_told_as_tokens():
    head = PartHead(torch.tensor([4, 9, 11]))
    assert choose_closely(torch.tensor([[0.0, 3.0, 3.0]]), [row()], NEAR, head) == [(9, True)]


def test_coarser_numbers_have_wider_ties_and_unknown_ones_the_widest():
    assert rounding("float32") == 1e-3
    assert rounding("float32") < rounding("float16") < rounding("bfloat16")
    assert rounding("no such thing") == rounding("bfloat16")
