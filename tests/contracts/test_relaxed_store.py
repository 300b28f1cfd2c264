"""Durability `relaxed`: nobody waits for the store, and its text never has a gap."""

import asyncio
import os
import signal

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from orchestrator.store import RedisSessionStore, StoreOptions, WriterOptions
from orchestrator.store.background import MOST_WAITING
from services.contract.errors import Fenced, NotFound, SessionAborted
from services.contract.types import FinishReason, SessionStatus
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.backends import KEY, Backend
from tests.contracts.owners import Owner, text_of
from tests.waiting import until

RELAXED = StoreOptions(lease_ms=300, relaxed=True)


@pytest.fixture
async def relaxed(backend):
    return await backend.store(RELAXED)


@pytest.fixture
async def away():
    """A server that can be switched off, a relaxed store that waits a second for it, an owner."""
    backend = Backend(fake=FakeServer())
    store = await backend.store(RELAXED, WriterOptions(patience_s=1.0))
    yield backend.fake, store, await Owner.create(store)
    backend.fake.connected = True
    await backend.close()


def dropped_by(store):
    """What the store drops from now on."""
    dropped = []
    store._background._drop = lambda: dropped.append(store)
    return dropped


async def test_what_is_written_arrives_in_order(relaxed):
    owner, dropped = await Owner.create(relaxed), dropped_by(relaxed)
    for number in range(40):
        assert await owner.write(number) == number + 1
    await relaxed.finish(KEY, 1, 40, FinishReason.LENGTH)
    owner.release()
    stored = await relaxed.get(KEY)
    assert (stored.status, list(stored.committed)) == (SessionStatus.FINISHED, owner.text)
    assert stored.relaxed
    assert not dropped


async def test_a_session_that_a_relaxed_owner_took_over_is_marked(backend):
    strict, relaxed = await backend.store(), await backend.store(RELAXED)
    await Owner.create(strict)
    assert not (await strict.get(KEY)).relaxed
    assert (await relaxed.acquire(KEY, "o2")).relaxed
    assert (await strict.acquire(KEY, "o3")).relaxed


async def test_writes_never_wait_for_a_server_that_is_away(away):
    server, store, owner = away
    server.connected = False
    for number in range(10):
        assert (await owner.write(number)) == number + 1
    await store.finish(KEY, 1, 10, FinishReason.LENGTH)
    server.connected = True
    assert await text_of(store) == owner.text
    assert (await store.get(KEY)).status is SessionStatus.FINISHED


async def test_what_does_not_fit_is_dropped_and_closed_up_later(away, caplog):
    server, store, owner = away
    server.connected, dropped = False, dropped_by(store)
    for number in range(5 * MOST_WAITING):
        await owner.write(number)
    assert len(store._writer._pending) <= MOST_WAITING
    assert len(dropped) >= 4 * MOST_WAITING
    server.connected = True
    stored = await text_of(store)
    assert stored == owner.text[: len(stored)]
    await until(owner.closed_up)
    assert owner.refused == []
    assert caplog.text.count("does not keep up") == 1


async def test_an_idle_session_is_closed_up_as_well(away):
    server, _, owner = away
    server.connected = False
    for number in range(2 * MOST_WAITING):
        await owner.write(number)
    server.connected = True
    await until(owner.stored)


async def test_an_end_closes_up_what_is_missing(away):
    server, store, owner = away
    server.connected = False
    for number in range(2 * MOST_WAITING):
        await owner.write(number)
    await store.finish(KEY, 1, len(owner.text), FinishReason.LENGTH)
    owner.release()
    server.connected = True
    stored = await store.get(KEY)
    assert (stored.status, list(stored.committed)) == (SessionStatus.FINISHED, owner.text)


async def test_a_text_whose_rest_was_never_stored_simply_ends(away):
    server, store, owner = away
    await owner.write(1, 2)
    assert await text_of(store) == [1, 2]
    server.connected = False
    for number in range(3):
        await owner.write(number)
    owner.release()
    await asyncio.sleep(2)
    server.connected = True
    stored = await store.get(KEY)
    assert list(stored.committed) == owner.text[: len(stored.committed)]
    assert stored.status is SessionStatus.ACTIVE


@pytest.mark.parametrize("ending", ["takeover", "abort"])
async def test_an_owner_that_lost_its_session_hears_it(backend, relaxed, ending):
    other = await backend.store(RELAXED)
    owner = await Owner.create(relaxed)
    if ending == "takeover":
        await other.acquire(KEY, "o2")
    else:
        await other.abort(KEY)
    assert await owner.write(7) == 1
    await until(lambda: owner.refused)
    assert isinstance(owner.refused[0], Fenced if ending == "takeover" else SessionAborted)
    assert await text_of(other) == []


@pytest.mark.parametrize("ending", ["takeover", "abort", "namesake"])
async def test_what_closes_a_gap_is_fenced_as_well(away, ending):
    server, store, owner = away
    other = RedisSessionStore(FakeAsyncRedis(server=server))
    await other.start()
    server.connected = False
    for number in range(2 * MOST_WAITING):
        await owner.write(number)
    await until(lambda: not store._writer._pending)
    server.connected = True
    if ending == "abort":
        await other.abort(KEY)
    elif ending == "takeover":
        await other.acquire(KEY, "o2")
    else:
        # As if the server had forgotten an acquire and given its term again.
        meta = f"paceline:{{{KEY.tenant}/{KEY.session_id}}}:meta"
        await FakeAsyncRedis(server=server).hset(meta, "owner", "o2")
    before = await text_of(other)
    held = store._leases.get(KEY, 1)
    refused = await asyncio.gather(store._leases.catch_up(held), return_exceptions=True)
    assert isinstance(refused[0], SessionAborted if ending == "abort" else Fenced)
    assert await text_of(other) == before
    await other.close()


async def test_a_session_that_is_gone_is_not_made_anew_and_its_owner_goes_on(backend, relaxed):
    owner = await Owner.create(relaxed)
    await backend.client().flushall()
    for number in range(30):
        await owner.write(number)
        await asyncio.sleep(0.05)
    assert owner.refused == []
    assert await backend.keys() == []
    with pytest.raises(NotFound):
        await relaxed.get(KEY)


async def test_a_server_that_restarts_empty_gets_the_whole_text():
    with EmbeddedRedis() as server:
        backend = Backend(url=server.url)
        owner = await Owner.create(await backend.store(RELAXED), 1)
        os.kill(server.pid, signal.SIGKILL)
        server.end_process()
        for number in range(2 * MOST_WAITING):
            await owner.write(number)
        server.start()
        await until(owner.closed_up)
        await backend.close()


async def test_a_session_without_a_holder_waits_for_the_store(away):
    server, _, owner = away
    owner.release()
    server.connected = False
    write = owner.write(1)
    await asyncio.sleep(0.1)
    assert not write.done()
    server.connected = True
    assert await write == 1


async def test_an_owner_that_stood_still_and_was_fenced_hears_it_before_it_emits(backend):
    store, other = await backend.store(RELAXED), await backend.store(RELAXED)
    zombie = await Owner.create(store, 1)
    await Owner.take(other, "o2")
    store.stood_still()
    written = zombie.write(2)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.shield(written)
    assert isinstance(zombie.refused[0], Fenced)


async def test_an_owner_that_stood_still_and_was_not_fenced_goes_on(relaxed):
    owner = await Owner.create(relaxed)
    relaxed.stood_still()
    assert await owner.write(1, 2) == 2
    await asyncio.sleep(2 * RELAXED.lease_ms / 1e3)
    assert await owner.write(3) == 3
    assert owner.refused == []


async def test_after_a_standstill_a_store_that_is_away_holds_nobody_up_for_long(away):
    server, store, owner = away
    await owner.write(1)
    server.connected = False
    store.stood_still()
    async with asyncio.timeout(20):
        assert await owner.write(2) == 2
    assert owner.refused == []
