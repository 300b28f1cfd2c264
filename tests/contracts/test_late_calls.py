"""A call that is carried out after its reader called again takes nothing away."""

import pytest

from orchestrator.session.ports import Call
from services.contract.errors import Fenced
from tests.contracts.backends import KEY, NEW

FIRST, SECOND, THIRD = (Call("reader", number) for number in (1, 2, 3))


async def test_an_earlier_call_of_the_same_reader_is_refused_and_fences_nobody(store):
    await store.create(KEY, NEW, FIRST)
    assert (await store.acquire(KEY, "o2", THIRD)).term == 2
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o3", SECOND)
    stored = await store.get(KEY)
    assert (stored.term, stored.owner) == (2, "o2")


async def test_a_call_repeated_is_served_again(store):
    await store.create(KEY, NEW, FIRST)
    assert (await store.acquire(KEY, "o2", FIRST)).term == 2
    assert (await store.acquire(KEY, "o3", FIRST)).term == 3


async def test_another_reader_takes_over_whatever_its_number_and_the_first_may_come_back(store):
    await store.create(KEY, NEW, THIRD)
    assert (await store.acquire(KEY, "o2", Call("other", 1))).term == 2
    assert (await store.acquire(KEY, "o1", Call("reader", 4))).term == 3


async def test_an_earlier_call_is_refused_also_after_another_reader_took_over(store):
    await store.create(KEY, NEW, FIRST)
    await store.acquire(KEY, "o2", THIRD)
    await store.acquire(KEY, "o1", Call("other", 1))
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o3", SECOND)
    stored = await store.get(KEY)
    assert (stored.term, stored.owner) == (3, "o1")


async def test_of_many_readers_the_latest_are_remembered(backend, store):
    await store.create(KEY, NEW, Call("reader-0", 2))
    for number in range(1, 40):
        await store.acquire(KEY, "o2", Call(f"reader-{number}", 2))
    assert len(await backend.client().hget(f"paceline:{{{KEY.name}}}:meta", "reader_calls")) < 400
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o3", Call("reader-30", 1))


async def test_who_does_not_say_which_call_it_is_takes_over_as_ever(store):
    await store.create(KEY, NEW, SECOND)
    assert (await store.acquire(KEY, "o2")).term == 2


async def test_a_call_that_the_owner_serves_counts_like_one_that_took_over(store):
    await store.create(KEY, NEW, FIRST)
    await store.attend(KEY, 1, THIRD)
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o2", SECOND)


async def test_who_is_no_owner_any_more_notes_nothing(store):
    await store.create(KEY, NEW, FIRST)
    await store.acquire(KEY, "o2", SECOND)
    await store.attend(KEY, 1, Call("reader", 9))
    assert (await store.acquire(KEY, "o3", THIRD)).term == 3


async def test_an_earlier_call_is_not_noted_over_a_later_one(store):
    await store.create(KEY, NEW, THIRD)
    await store.attend(KEY, 1, FIRST)
    with pytest.raises(Fenced):
        await store.acquire(KEY, "o2", SECOND)


async def test_a_session_that_is_gone_has_nobody_to_note(backend, store):
    await (await backend.store()).attend(KEY, 1, FIRST)
    assert not await backend.keys()
