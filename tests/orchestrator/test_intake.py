"""Few messages are looked at at once, of each tenant and of all; slow ones stand aside."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from orchestrator.frontdoor import intake
from orchestrator.frontdoor.intake import AT_ONCE, OF_ALL, Intake, MessageSlot, vetted
from orchestrator.frontdoor.long_requests import LARGE
from tests.waiting import skipped_time

SHORT = LARGE - 1


@pytest.fixture(autouse=True)
async def no_real_time():
    with skipped_time():
        yield


async def is_let_in(door: Intake, tenant: str) -> MessageSlot | None:
    """A place, where there is one at once."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            return await door.enter(tenant)
    return None


async def filled(door: Intake, tenant: str, count: int = AT_ONCE) -> list[MessageSlot]:
    """Places that are taken, as by calls of their own."""
    return [await asyncio.create_task(door.enter(tenant)) for _ in range(count)]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(intake, "PATIENCE", 0.05)


async def test_a_tenant_has_so_many_places_and_others_have_theirs():
    door = Intake()
    await filled(door, "one")
    assert await is_let_in(door, "one") is None
    assert await is_let_in(door, "other") is not None


async def test_all_tenants_together_have_so_many():
    door = Intake()
    for number in range(OF_ALL // AT_ONCE):
        await filled(door, f"t{number}")
    assert await is_let_in(door, "late") is None


async def test_who_leaves_makes_room_for_one_however_often():
    door = Intake()
    first, _ = await filled(door, "one")
    for _ in range(3):
        first.leave()
    assert await is_let_in(door, "one") is not None
    assert await is_let_in(door, "one") is None


async def test_a_short_message_has_its_place_until_it_is_read_and_a_large_one_until_it_is_vetted():
    door = Intake()

    async def call(size: int, read: asyncio.Event, go_on: asyncio.Event) -> None:
        place = await door.enter("one")
        place.read(size)
        read.set()
        await go_on.wait()
        vetted()
        await asyncio.sleep(60)

    read, go_on = [asyncio.Event() for _ in range(3)], asyncio.Event()
    sizes = (SHORT, LARGE, LARGE)
    calls = [asyncio.create_task(call(*each, go_on)) for each in zip(sizes, read, strict=True)]
    await asyncio.gather(*(each.wait() for each in read))
    assert await is_let_in(door, "one") is None
    go_on.set()
    assert await is_let_in(door, "one") is not None
    for each in calls:
        each.cancel()


async def test_who_gives_up_waiting_takes_no_place():
    door = Intake()
    first, second = await filled(door, "one")
    waiting = [asyncio.create_task(door.enter("one")) for _ in range(5)]
    await asyncio.sleep(0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    first.leave()
    second.leave()
    await filled(door, "one")
    assert await is_let_in(door, "one") is None


async def test_who_gives_up_waiting_for_others_leaves_its_own_turn():
    door = Intake()
    taken = [await filled(door, f"t{number}") for number in range(OF_ALL // AT_ONCE)]
    for _ in range(AT_ONCE):
        assert await is_let_in(door, "late") is None
    for place in taken[0]:
        place.leave()
    async with asyncio.timeout(1):
        await filled(door, "late")


@pytest.mark.usefixtures("impatient")
async def test_slow_messages_are_parked_and_so_many_at_most(monkeypatch):
    monkeypatch.setattr(intake, "PARKED", 3)
    door = Intake()
    slow = [await asyncio.wait_for(door.enter("one"), 1) for _ in range(3 + AT_ONCE)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(door.enter("one"), 0.3)
    # One that has come makes room aside, and with it one of those that wait to go there.
    slow[0].leave()
    async with asyncio.timeout(1):
        await door.enter("one")


@pytest.mark.usefixtures("impatient")
async def test_of_messages_that_never_come_the_first_is_given_up_and_nobody_waits_long(monkeypatch):
    monkeypatch.setattr(intake, "PARKED", 3)
    door, given_up = Intake(), []

    async def silent(number: int) -> None:
        place = await door.enter("one")
        try:
            async with place.waiting(60):
                await asyncio.sleep(60)
        except TimeoutError:
            given_up.append(number)
        place.leave()

    calls = [asyncio.create_task(silent(number)) for number in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(2):
        place = await door.enter("one")
        place.read(SHORT)
    assert given_up == list(range(len(given_up)))
    assert len(given_up) >= 20 - 3 - AT_ONCE
    for each in calls:
        each.cancel()


@pytest.mark.usefixtures("impatient")
async def test_what_has_come_is_not_given_up(monkeypatch):
    monkeypatch.setattr(intake, "PARKED", 1)
    door = Intake()
    come, _ = await filled(door, "one")
    async with come.waiting(60):
        pass
    come.read(LARGE)
    await asyncio.sleep(0.2)
    assert await is_let_in(door, "one") is not None


@pytest.mark.usefixtures("impatient")
async def test_who_stood_aside_frees_no_turn_when_it_ends():
    door = Intake()
    slow = await filled(door, "one")
    await asyncio.sleep(0.1)
    await filled(door, "one")
    for place in slow:
        place.leave()
    assert await is_let_in(door, "one") is None
