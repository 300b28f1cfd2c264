"""Counts of a text for the penalties: grown, rewound, read with a draft path."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import ResolvedSampling
from services.engine.sampling import History, wants_history
from tests.rules.test_penalties import history_of
from tests.tries import tries

tokens = st.lists(st.integers(0, 300), max_size=40)


@given(tokens, st.lists(st.tuples(tokens, st.integers(0, 60))), tokens)
@tries(200)
def test_a_history_grown_and_rewound_equals_one_made_anew(prompt, moves, path):
    history, output = History(prompt), []
    for added, cut in moves:
        history.extend(tuple(added))
        output += added
        output = output[: len(output) - min(cut, len(output))]
        history.rewind(len(output))
        assert history.output_length == len(output)
    ids, counts = history.counts(path)
    found = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    text = [*output, *path]
    assert found == {token: text.count(token) for token in {*prompt, *text}}
    assert len(ids) == len(found)


def test_a_history_holds_however_many_different_tokens_come():
    history = History([])
    history.extend(list(range(500)) * 2)
    ids, counts = history.counts()
    assert ids.tolist() == list(range(500))
    assert counts.tolist() == [2] * 500


def test_a_history_is_not_changed_by_the_rows_that_read_it():
    history = history_of([1], [2, 2])
    history.counts((2, 9))[1][:] = 77
    ids, counts = history.counts()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {1: 0, 2: 2}


@pytest.mark.parametrize("length", [-1, 3])
def test_a_history_refuses_to_rewind_to_what_it_never_had(length):
    with pytest.raises(ValueError, match="rewind"):
        history_of([1], [2, 2]).rewind(length)


def test_extending_a_history_costs_the_same_however_long_the_text_is():
    history = history_of(range(5000), list(range(4000)))
    ids, _ = history.counts()
    history.extend([3])
    assert np.shares_memory(ids, history.counts()[0])


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        ({}, False),
        ({"temperature": 0.5, "top_p": 0.5, "logit_bias": ((1, 1.0),), "min_tokens": 3}, False),
        ({"frequency_penalty": -0.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"repetition_penalty": 0.9}, True),
        ({"allowed_token_ids": (3,)}, False),
        ({"bad_words": ((3,),)}, True),
    ],
)
def test_a_history_is_wanted_where_a_row_depends_on_its_prefix(sampling, wanted):
    assert wants_history(ResolvedSampling(**sampling)) is wanted
