"""A reader that keeps up gets each delivery, one that is behind gets them joined."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.core.events import Ending
from orchestrator.output import Beyond, Delivery, Output, Prefix
from services.common.errors import DataLoss, OffsetOutOfRange
from services.common.types import FinishReason, LogprobRow, Origin


def delivery(offset: int, *tokens: int, told: bool = True) -> Delivery:
    return Delivery(
        offset,
        tokens,
        tuple(f"<{token}>" for token in tokens),
        tuple(LogprobRow(-float(token)) for token in tokens) if told else (),
        tuple(Origin.ACCEPTED for _ in tokens) if told else (),
    )


async def read(output: Output, offset: int = 0) -> list[Delivery]:
    return [delivery async for delivery in output.follow(Prefix(offset))]


async def test_what_waits_for_a_reader_leaves_in_one_message():
    output = Output()
    for first in (0, 2, 4):
        output.put(delivery(first, first, first + 1))
    output.end(Ending(FinishReason.LENGTH))
    assert await read(output) == [delivery(0, 0, 1, 2, 3, 4, 5)]
    assert await read(output, 3) == [delivery(3, 3, 4, 5)]


async def test_tokens_of_another_owner_of_which_less_is_known_go_by_themselves():
    output = Output()
    output.put(delivery(0, 0, 1, told=False))
    output.put(delivery(2, 2))
    output.put(delivery(3, 3))
    output.end(Ending(FinishReason.LENGTH))
    assert await read(output) == [delivery(0, 0, 1, told=False), delivery(2, 2, 3)]


async def test_a_reader_that_keeps_up_waits_for_nothing():
    output = Output()
    taken: list[Delivery] = []

    async def reader() -> None:
        async for one in output.follow(Prefix()):
            taken.append(one)  # noqa: PERF401 - one at a time is the point

    reading = asyncio.create_task(reader())
    for token in range(3):
        output.put(delivery(token, token))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(taken) == token + 1
    output.end(Ending(FinishReason.LENGTH))
    await reading
    assert [one.token_ids for one in taken] == [(0,), (1,), (2,)]


async def test_a_reader_far_behind_gets_messages_of_bounded_size():
    output = Output()
    for token in range(200):
        output.put(delivery(token, token))
    output.end(Ending(FinishReason.LENGTH))
    parts = await read(output)
    assert [len(part.token_ids) for part in parts] == [64, 64, 64, 8]
    assert [token for part in parts for token in part.token_ids] == list(range(200))


async def test_a_reader_ahead_of_what_comes_again_gets_only_what_follows_its_offset():
    output = Output(Beyond.AGAIN)
    output.put(delivery(0, 0, 1))
    reading = asyncio.create_task(read(output, 5))
    await asyncio.sleep(0)
    for first in (2, 4, 6):
        output.put(delivery(first, first, first + 1))
        await asyncio.sleep(0)
    output.end(Ending(FinishReason.LENGTH))
    assert [token for one in await reading for token in one.token_ids] == [5, 6, 7]


@pytest.mark.parametrize(
    ("beyond", "error"),
    [
        (Beyond.NOT_YET, OffsetOutOfRange),
        (Beyond.LOST, DataLoss),
        (Beyond.AGAIN, OffsetOutOfRange),
    ],
)
async def test_a_reader_ahead_of_everything_is_refused(beyond, error):
    output = Output(beyond)
    output.put(delivery(0, 0, 1))
    output.end(Ending(FinishReason.LENGTH))
    with pytest.raises(error):
        await read(output, 3)
    assert await read(output, 2) == []
