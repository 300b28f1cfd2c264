"""Several streams as one: a slow or broken one holds up no other, and nothing piles up."""

import asyncio

import pytest
from paceline.together import together


async def counting(name, count, given):
    try:
        for number in range(count):
            given.append((name, number))
            yield name, number
    finally:
        given.append((name, "left"))


async def never():
    await asyncio.Event().wait()
    yield


async def broken():
    yield "broken", 0
    raise ValueError("broken")


async def test_each_stream_keeps_its_order_and_all_come_to_their_ends():
    streams = [counting(name, 50, []) for name in "abc"]
    got = [item async for item in together(streams)]
    for name in "abc":
        assert [number for one, number in got if one == name] == list(range(50))


async def test_a_stream_that_stalls_holds_up_no_other():
    events = together([never(), counting("a", 20, [])])
    assert [await anext(events) for _ in range(20)] == [("a", number) for number in range(20)]
    await events.aclose()


async def test_no_more_is_taken_ahead_of_the_reader_than_is_promised():
    given = []
    events = together([counting(name, 100, given) for name in "abcd"])
    await anext(events)
    await asyncio.sleep(0.01)
    # One was read, one of each stream waits, and four are in the queue.
    assert len(given) <= 1 + 4 + 4
    await events.aclose()
    assert sorted(one for one, number in given if number == "left") == list("abcd")


async def test_an_error_comes_when_the_others_have_ended():
    events = together([broken(), counting("a", 30, [])])
    assert len([await anext(events) for _ in range(31)]) == 31
    with pytest.raises(ValueError, match="broken"):
        await anext(events)
