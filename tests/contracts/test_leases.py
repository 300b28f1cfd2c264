"""An owner that has nothing to write still hears that its session is not its own any more."""

import asyncio

import pytest
from fakeredis import FakeServer

from orchestrator.session.ports import SessionKey
from orchestrator.store import StoreOptions
from services.contract.errors import DataLoss, Fenced, SessionAborted
from services.contract.types import SessionStatus
from tests.contracts.backends import KEY, Backend
from tests.contracts.owners import Owner
from tests.waiting import until

QUICK = StoreOptions(lease_ms=300)


ENDINGS = {
    "taken over": (lambda backend, other: other.acquire(KEY, "o2"), Fenced),
    "aborted": (lambda backend, other: other.abort(KEY), SessionAborted),
    "gone": (lambda backend, other: backend.client().flushall(), DataLoss),
}


@pytest.mark.parametrize(("end", "error"), ENDINGS.values(), ids=ENDINGS)
async def test_an_owner_hears_without_a_write_that_its_session_was(backend, end, error):
    owner = await Owner.create(await backend.store(QUICK))
    await end(backend, await backend.store(QUICK))
    await until(lambda: owner.refused)
    assert isinstance(owner.refused[0], error)


async def test_an_idle_owner_keeps_its_lease_and_its_session(backend):
    store = await backend.store(StoreOptions(lease_ms=300, ttl_ms=600_000))
    owner = await Owner.create(store, 7)
    first, client = (await store.get(KEY)).lease_until_ms, backend.client()
    for key in await backend.keys():
        await client.pexpire(key, 60_000)

    async def renewed() -> bool:
        left = [await client.pttl(key) for key in await backend.keys()]
        return min(left) > 500_000 and (await store.get(KEY)).lease_until_ms > first + 1_000

    await until(renewed)
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.ACTIVE, (7,))
    assert owner.refused == []


async def test_a_released_session_is_renewed_no_more(backend):
    store = await backend.store(StoreOptions(lease_ms=150, ttl_ms=600))
    (await Owner.create(store)).release()
    assert store.held == 0
    await until(backend.empty)


async def test_busy_sessions_cost_no_renewals(backend, monkeypatch):
    store = await backend.store(StoreOptions(lease_ms=60_000))
    owner = await Owner.create(store)
    asked = []
    monkeypatch.setattr(store, "_renew", asked.append)
    for number in range(20):
        await owner.write(number)
    assert asked == []


async def test_while_the_server_is_away_one_renewal_of_a_session_waits_at_most():
    backend = Backend(fake=FakeServer())
    store = await backend.store(StoreOptions(lease_ms=60))
    owners = [await Owner.create(store, key=SessionKey("acme", str(n))) for n in range(5)]
    backend.fake.connected = False
    await asyncio.sleep(1)
    assert len(store._writer._pending) <= 5
    backend.fake.connected = True
    await asyncio.gather(*(owner.write(1) for owner in owners))
    assert all(owner.refused == [] for owner in owners)
    await backend.close()


@pytest.mark.parametrize("late", [False, True])
async def test_an_older_term_cannot_release_what_a_later_one_holds(backend, late):
    store = await backend.store(QUICK)
    old = await Owner.create(store)
    new = await Owner.take(store, "o1")
    old.release()
    assert store.held == 1
    if late:
        new.release()
        assert store.held == 0


async def test_an_owner_that_stood_still_asks_at_once_whose_the_session_is(backend):
    slow = StoreOptions(lease_ms=600_000)
    stores = [await backend.store(slow), await backend.store(slow)]
    zombie = await Owner.create(stores[0])
    await Owner.take(stores[1], "o2")
    stores[0].stood_still()
    await until(lambda: zombie.refused)
    assert isinstance(zombie.refused[0], Fenced)
