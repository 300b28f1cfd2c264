"""A reader that keeps up gets each delivery, one that is behind gets them joined."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from orchestrator.session.output import MOST_TOGETHER, Beyond, Delivery, Output, Prefix
from orchestrator.steering.rounds import Ending
from services.contract.errors import DataLoss, OffsetOutOfRange
from services.contract.types import EMPTY_HASH, FinishReason, LogprobRow, Origin, extend_hash


def delivery(offset: int, *tokens: int, told: bool = True) -> Delivery:
    rows = tuple(LogprobRow(-float(token)) for token in tokens) if told else ()
    origins = (Origin.ACCEPTED,) * len(tokens) if told else ()
    return Delivery(offset, tokens, tuple(f"<{token}>" for token in tokens), rows, origins)


async def read(output: Output, offset: int = 0, had: Sequence[int] | None = None) -> list[Delivery]:
    told = None if had is None else extend_hash(EMPTY_HASH, had)
    return [delivery async for delivery in output.follow(Prefix(offset, told))]


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
    [(Beyond.NOT_YET, OffsetOutOfRange), (Beyond.LOST, DataLoss), (Beyond.AGAIN, OffsetOutOfRange)],
)
async def test_a_reader_ahead_of_everything_is_refused(beyond, error):
    output = Output(beyond)
    output.put(delivery(0, 0, 1))
    output.end(Ending(FinishReason.LENGTH))
    with pytest.raises(error):
        await read(output, 3)
    assert await read(output, 2) == []


def emitted(*parts: tuple[int, ...], proven: Beyond = Beyond.LOST) -> Output:
    output, offset = Output(proven=proven), 0
    for part in parts:
        output.put(delivery(offset, *part))
        offset += len(part)
    return output


async def test_a_reader_of_the_same_text_goes_on_wherever_it_stands():
    output = emitted((4, 5), (6,), (7, 8, 9))
    output.end(Ending(FinishReason.LENGTH))
    text = (4, 5, 6, 7, 8, 9)
    for at in range(7):
        rest = await read(output, at, text[:at])
        assert tuple(token for one in rest for token in one.token_ids) == text[at:]


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_reader_of_another_text_gets_nothing_of_this_one(at):
    output = emitted((4, 5), (6,), (7, 8, 9), proven=Beyond.AGAIN)
    other = (*(4, 5, 6, 7, 8, 9)[: at - 1], 1)
    with pytest.raises(DataLoss, match="prefix_hash"):
        await read(output, at, other)


async def test_a_reader_that_is_ahead_and_says_what_it_has_waits_and_is_then_compared():
    output = emitted((4, 5), proven=Beyond.AGAIN)
    same = asyncio.create_task(read(output, 4, (4, 5, 6, 7)))
    other = asyncio.create_task(read(output, 4, (4, 5, 6, 8)))
    await asyncio.sleep(0)
    output.put(delivery(2, 6, 7, 8))
    output.end(Ending(FinishReason.LENGTH))
    assert [one.token_ids for one in await same] == [(8,)]
    with pytest.raises(DataLoss, match="prefix_hash"):
        await other


@pytest.mark.parametrize("proven", [Beyond.LOST, Beyond.AGAIN])
async def test_tokens_that_a_reader_has_and_an_ended_text_has_not_are_lost(proven):
    output = emitted((4, 5), proven=proven)
    output.end(Ending(FinishReason.LENGTH))
    with pytest.raises(DataLoss, match="lies beyond the 2 tokens"):
        await read(output, 3, (4, 5, 6))


async def test_what_another_owner_emitted_leaves_in_messages_of_bounded_size():
    output, text = Output(), tuple(range(10_000))
    output.put_all(text, ["x"] * len(text))
    output.end(Ending(FinishReason.LENGTH))
    parts = await read(output, 5_000, text[:5_000])
    assert tuple(token for one in parts for token in one.token_ids) == text[5_000:]
    assert max(len(one.token_ids) for one in parts) <= MOST_TOGETHER
