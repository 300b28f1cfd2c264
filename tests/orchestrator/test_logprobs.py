"""Logprobs wait for readers in little memory, and only those of the last tokens."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.logprobs import memory_of, pack_row, unpack_row
from orchestrator.session.output import Delivery, Output, Prefix
from orchestrator.steering.rounds import Ending
from services.contract.types import FinishReason, LogprobRow
from tests.orchestrator.request_kit import sampled

float32 = st.floats(width=32, allow_nan=False)
rows = st.integers(0, 20).flatmap(
    lambda count: st.builds(
        LogprobRow,
        float32,
        st.tuples(*[st.integers(0, 2**32 - 1)] * count),
        st.tuples(*[float32] * count),
    )
)


@given(rows)
def test_a_row_comes_out_as_it_went_in(row):
    assert unpack_row(pack_row(row)) == row


@pytest.mark.parametrize("count", [0, 1, 20])
def test_what_is_counted_is_what_it_takes(count):
    spec = sampled(logprobs=count)
    row = pack_row(LogprobRow(-1.0, tuple(range(count)), (-1.0,) * count))
    taken = sys.getsizeof(row) + struct.calcsize("P")
    assert taken <= memory_of(spec.sampling, 1) <= 1.2 * taken + 8


def test_who_asks_for_none_takes_nothing():
    assert memory_of(sampled().sampling, 1000) == 0


def delivery(offset: int, count: int) -> Delivery:
    row = pack_row(LogprobRow(-1.0, tuple(range(20)), (-1.0,) * 20))
    return Delivery(offset, (1,) * count, ("x",) * count, (row,) * count)


async def test_a_reader_far_behind_gets_its_last_tokens_with_logprobs_and_all_others_without():
    output = Output(logprobs_kept=100)
    for first in range(0, 999, 3):
        output.put(delivery(first, 3))
        assert sum(len(one.logprobs) for one in output._deliveries) <= 102
    output.end(Ending(FinishReason.LENGTH))
    read = [one async for one in output.follow(Prefix())]
    assert sum(len(one.token_ids) for one in read) == 999
    told = [one for one in read if one.logprobs]
    assert all(len(one.logprobs) == len(one.token_ids) for one in told)
    assert 100 <= sum(len(one.logprobs) for one in told) <= 102
    assert told[0].offset == 999 - sum(len(one.logprobs) for one in told)


async def test_tokens_that_came_without_any_are_no_reason_to_forget_those_of_others():
    output = Output(logprobs_kept=4)
    output.put_all((1,) * 600, ("x",) * 600)
    for first in range(600, 608):
        output.put(delivery(first, 1))
    output.end(Ending(FinishReason.LENGTH))
    read = [one async for one in output.follow(Prefix())]
    assert [(one.offset, len(one.logprobs)) for one in read if one.logprobs] == [(604, 4)]
