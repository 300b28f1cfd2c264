"""The order of writes, and what happens when the server is away."""

import asyncio
import random

import pytest
from fakeredis import FakeServer

from orchestrator.session.ports import SessionKey
from orchestrator.store import WriterOptions
from orchestrator.store.delivery import OneServer
from services.contract.errors import DataLoss, StoreError
from services.contract.types import FinishReason, SessionStatus
from tests.contracts.backends import KEY, NEW, Backend


async def test_writes_of_many_sessions_keep_their_order_unawaited(backend):
    store = await backend.store(writer=WriterOptions(max_batch=7))
    keys = [SessionKey("acme", f"s-{number}") for number in range(20)]
    order: list[tuple[SessionKey, int]] = []
    writes = [store.create(key, NEW) for key in keys]
    for round in range(1, 11):
        for key in random.Random(round).sample(keys, len(keys)):
            write = store.commit(key, 1, round, round - 1, [round])
            write.add_done_callback(lambda _, what=(key, round): order.append(what))
            writes.append(write)
    sent = [(key, r) for r in range(1, 11) for key in random.Random(r).sample(keys, len(keys))]
    await asyncio.gather(*writes)
    assert order == sent
    for key in keys:
        assert (await store.get(key)).committed == tuple(range(1, 11))


async def test_a_read_sees_the_writes_before_it(store):
    create = store.create(KEY, NEW)
    commit = store.commit(KEY, 1, 1, 0, [7])
    assert (await store.get(KEY)).committed == (7,)
    assert create.done()
    assert commit.done()


async def test_a_refused_write_does_not_hold_up_its_neighbours(store):
    await store.create(KEY, NEW)
    good = SessionKey("acme", "good")
    answers = await asyncio.gather(
        store.create(good, NEW),
        store.commit(KEY, 1, 1, 5, [7]),
        store.commit(good, 1, 1, 0, [8]),
        return_exceptions=True,
    )
    assert isinstance(answers[1], DataLoss)
    assert answers[2] == 1


async def test_cancelling_a_caller_does_not_withdraw_its_write(store):
    await store.create(KEY, NEW)

    async def commit() -> None:
        await store.commit(KEY, 1, 1, 0, [7])

    caller = asyncio.create_task(commit())
    await asyncio.sleep(0)
    caller.cancel()
    assert await store.commit(KEY, 1, 2, 1, [8]) == 2
    assert caller.cancelled()
    assert (await store.get(KEY)).committed == (7, 8)


async def test_scripts_are_loaded_again_when_the_server_forgot_them(store, backend):
    await store.create(KEY, NEW)
    await backend.client().script_flush()
    writes = [store.commit(KEY, 1, r, r - 1, [r]) for r in (1, 2, 3)]
    assert await asyncio.gather(*writes) == [1, 2, 3]
    assert (await store.get(KEY)).committed == (1, 2, 3)


async def test_a_lost_reply_changes_nothing(store, monkeypatch):
    execute, lost = OneServer.execute, []

    async def execute_and_lose_every_first_reply(writer, calls):
        replies = await execute(writer, calls)
        if calls not in lost:
            lost.append(calls)
            raise ConnectionError("the reply is lost")
        return replies

    monkeypatch.setattr(OneServer, "execute", execute_and_lose_every_first_reply)
    assert (await store.create(KEY, NEW)).created
    assert (await store.acquire(KEY, "o2")).term == 2
    assert await asyncio.gather(*[store.commit(KEY, 2, r, r - 1, [r]) for r in (1, 2)]) == [1, 2]
    await store.finish(KEY, 2, 2, FinishReason.LENGTH)
    assert (await store.get(KEY)).committed == (1, 2)
    assert len(lost) == 7


async def test_a_broken_connection_is_not_noticed_by_callers(valkey):
    backend = Backend(url=valkey.url)
    store = await backend.store()
    await store.create(KEY, NEW)
    for round in range(1, 6):
        await backend.client().client_kill_filter(_type="normal", skipme=True)
        writes = [store.commit(KEY, 1, 2 * round + i, 2 * round - 2 + i, [i]) for i in (0, 1)]
        assert await asyncio.gather(*writes) == [2 * round - 1, 2 * round]
    assert (await store.get(KEY)).committed == (0, 1) * 5
    await backend.client().flushall()
    await backend.close()


@pytest.fixture
async def away():
    """A store whose server can be switched off; calls wait half a second for it."""
    backend = Backend(fake=FakeServer())
    yield backend.fake, await backend.store(writer=WriterOptions(patience_s=0.5, max_pending=5))
    await backend.close()


async def test_a_call_fails_when_its_patience_ends_and_the_session_is_unharmed(away):
    server, store = away
    await store.create(KEY, NEW)
    server.connected = False
    with pytest.raises(StoreError, match="does not answer"):
        await store.commit(KEY, 1, 1, 0, [7])
    server.connected = True
    assert await store.commit(KEY, 1, 1, 0, [7]) == 1
    await store.finish(KEY, 1, 1, FinishReason.LENGTH)
    assert (await store.get(KEY)).status is SessionStatus.FINISHED


async def test_calls_beyond_the_bound_are_refused_at_once(away):
    server, store = away
    server.connected = False
    writes = [store.look(KEY) for _ in range(12)]
    assert len([write for write in writes if write.done()]) == 7
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)


async def test_close_sends_what_is_queued(backend):
    store, reader = await backend.store(), await backend.store()
    await store.create(KEY, NEW)
    write = store.commit(KEY, 1, 1, 0, [7])
    await store.close()
    assert await write == 1
    assert (await reader.get(KEY)).committed == (7,)
    with pytest.raises(StoreError, match="closed"):
        await store.get(KEY)


async def test_close_does_not_wait_for_ever_for_a_server_that_is_away():
    backend = Backend(fake=FakeServer())
    store = await backend.store()
    backend.fake.connected = False
    writes = [store.get(KEY) for _ in range(3)]
    await store.close(0.05)
    answers = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(answer, StoreError) for answer in answers)
