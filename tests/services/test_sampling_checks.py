"""What a worker refuses of sampling parameters, and its words for it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from services.contract.sampling import NUMBERS, Range, as_drawn, number
from services.contract.sampling_checks import complaint
from services.contract.types import ResolvedSampling, VerifyMode

NAN, INF = math.nan, math.inf
NEUTRAL = {name: one.neutral for name, one in NUMBERS.items()}
REFUSED = {
    "temperature": ("cannot be sampled from", 0.0, 1e-7, -1.0, NAN, INF),
    "top_p": ("is outside (0, 1]", 0.0, 1.1, NAN),
    "top_k": ("is negative", -1),
    "min_p": ("is outside [0, 1]", -0.1, 1.1, NAN),
    "frequency_penalty": ("is not a number to subtract", NAN, INF, -INF),
    "presence_penalty": ("is not a number to subtract", NAN, INF, -INF),
    "repetition_penalty": ("is not a positive number", 0.0, -1.0, NAN, INF),
}
# Beyond what a request may ask for, and yet a law.
TAKEN = {"temperature": 1e-6, "top_k": 2**40, "frequency_penalty": -300.0}
TAKEN |= {"presence_penalty": 1e30, "repetition_penalty": 1e30}


def said(name: str, value: float, mode: VerifyMode = VerifyMode.COUPLED) -> str:
    return complaint(replace(ResolvedSampling(), **{name: value}), mode)


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_law_is_refused_by_name(name):
    words, *values = REFUSED[name]
    assert [said(name, value) for value in values] == [
        f"sampling.{name}: {value} {words}" for value in values
    ]


def test_what_no_request_may_ask_for_is_taken_where_it_gives_a_law():
    assert {name: said(name, value) for name, value in TAKEN.items()} == dict.fromkeys(TAKEN, "")


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_an_argmax_reads_no_temperature(value):
    assert said("temperature", value, VerifyMode.GREEDY) == ""


@pytest.mark.parametrize("name", NUMBERS)
def test_the_ends_of_what_may_be_asked_for_pass_as_they_arrive(name):
    one = NUMBERS[name]
    for end in (one.allowed.low, one.allowed.high):
        arrived = end if one.kind is int else float(np.float32(end))
        drawn = ResolvedSampling(**as_drawn(NEUTRAL | {name: arrived}))
        mode = VerifyMode.COUPLED if drawn.temperature else VerifyMode.GREEDY
        assert complaint(drawn, mode) == ""


def test_a_number_of_which_nothing_more_is_said_is_refused_beyond_its_rounded_range():
    one = number(0.0, Range(0.0, 0.7), help="").metadata["declared"]
    assert [one.usable.holds(float(np.float32(value))) for value in (0.7, 0.71)] == [True, False]
    assert one.unusable == "is not 0 to 0.7"
