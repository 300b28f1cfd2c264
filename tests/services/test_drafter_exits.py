"""The exit threshold of Draft & Verify: its rule, and its published update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.drafter.methods.self_draft.exits import Exit


def published(state, accepted, drafted, longest):
    """The update of the paper's code, with auto_parameters = [1, 0.5, 0.9, 0.01, 0.9]."""
    th, m = state
    _, beta1, alpha, epsilon, beta2 = 1, 0.5, 0.9, 0.01, 0.9
    m = beta1 * m + (1 - beta1) * (accepted / drafted)
    if m < alpha:
        new = th + epsilon
    elif drafted == longest:
        new = th
    else:
        new = th - epsilon
    return beta2 * th + (1 - beta2) * new, m


ROUNDS = st.lists(st.integers(1, 8).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))


@given(ROUNDS)
def test_the_threshold_moves_as_published(rounds):
    rule, state = Exit(0.6), (0.6, 0.0)
    for accepted, drafted in rounds:
        rule = rule.verified(accepted, drafted, full=drafted == 8)
        state = published(state, accepted, drafted, 8)
    assert (rule.threshold, rule.acceptance) == pytest.approx(state)


def test_a_token_as_likely_as_the_threshold_ends_nothing():
    assert not Exit(0.5).after(0.5)
    assert Exit(0.5).after(0.4999)
    assert not Exit(0.0).after(0.0)


def test_a_fixed_threshold_stays():
    rule = Exit(0.7, adaptive=False)
    assert rule.verified(0, 5, full=True) == rule
