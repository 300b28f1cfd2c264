"""Laws that agree and meet exactly as often as asked, by enumeration of their tokens."""

from __future__ import annotations

from itertools import product

import pytest

from services.engine.synthetic.laws import MOST_TOKENS, laws

AGREEMENTS = (0.0, 0.01, 0.3, 0.5, 0.7, 0.95, 1.0)
SHARES = (0.0, 0.001, 0.05, 0.3, 0.5, 0.9, 1.0)
"""Of the way from the least overlap to the greatest."""


@pytest.mark.parametrize(("agreement", "share"), [*product(AGREEMENTS, SHARES)])
def test_a_draft_is_accepted_with_the_agreement_and_met_by_chance_with_the_overlap(
    agreement, share
):
    least = agreement**2 / (MOST_TOKENS - 2)
    overlap = least + share * (agreement - least)
    made = laws(agreement, overlap)
    pairs = list(zip(made.target, made.draft, strict=True))
    assert len(pairs) <= MOST_TOKENS
    assert min(*made.target, *made.draft) >= 0.0
    assert [sum(law) for law in (made.target, made.draft)] == pytest.approx([1.0, 1.0], abs=1e-12)
    accepted = sum(q * min(1.0, p / q) for p, q in pairs if q)
    assert accepted == pytest.approx(agreement, abs=1e-12)
    assert sum(p * q for p, q in pairs) == pytest.approx(overlap, abs=1e-12)


def test_as_few_tokens_are_shared_as_the_overlap_allows():
    assert [len(laws(0.7, overlap).target) - 2 for overlap in (0.7, 0.49, 0.245, 0.1)] == [
        1,
        1,
        2,
        5,
    ]


@pytest.mark.parametrize(
    ("agreement", "overlap"), [(0.7, 0.71), (0.7, 0.008), (0.0, 0.1), (1.0, 0.01), (0.5, 1.0)]
)
def test_pairs_that_no_laws_have_are_refused_in_one_sentence(agreement, overlap):
    with pytest.raises(ValueError, match=f"an overlap of {overlap:g} is not within") as caught:
        laws(agreement, overlap)
    assert "\n" not in str(caught.value)


def test_shared_noise_finds_the_same_token_less_often_than_they_agree_unless_one_is_sure():
    # Of three tokens: (.7, .3, 0) and (.7, 0, .3).
    assert laws(0.7, 0.49).coupled == pytest.approx(0.7 / 1.3)
    assert laws(0.7, 0.7).coupled == pytest.approx(0.7)
    assert laws(1.0, 0.2).coupled == pytest.approx(1.0)
    assert laws(0.0, 0.0).coupled == 0.0


@pytest.mark.parametrize("agreement", [0.2, 0.7, 1.0])
def test_no_laws_at_all_meet_more_often_than_they_agree(agreement):
    """p·q is at most min(p, q), token by token; the bound is reached where the target is sure."""
    made = laws(agreement, agreement)
    assert made.target[0] == pytest.approx(1.0)
