"""What the store tells those who watch it: refused writes, and for how long it is away."""

import asyncio

import pytest
from fakeredis import FakeServer

from orchestrator.store import RedisSessionStore, WriterOptions
from orchestrator.workers.discovery import discover
from services.contract.errors import Fenced, NotFound, SessionAborted, StoreError
from services.contract.types import Role
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.outage import Outage
from services.runtime.registry import WorkerRegistry
from services.runtime.tasks import end
from tests.contracts.backends import KEY, NEW, Backend
from tests.waiting import until


@pytest.fixture
async def watched(backend):
    """A store, and a list that grows with each write that is fenced."""
    fenced: list[None] = []
    store = RedisSessionStore(backend.client(), on_fenced=lambda: fenced.append(None))
    await store.start()
    backend.opened.append(store)
    await store.create(KEY, NEW)
    return store, fenced


async def test_each_write_of_an_owner_that_lost_its_session_is_told(watched):
    store, fenced = watched
    await store.commit(KEY, 1, 1, 0, [7])
    await store.acquire(KEY, "o2")
    assert not fenced
    for number, write in enumerate((store.commit(KEY, 1, 2, 1, [8]), store.pause(KEY, 1)), start=1):
        with pytest.raises(Fenced):
            await write
        assert len(fenced) >= number
    await store.commit(KEY, 2, 1, 1, [8])
    assert len(fenced) == 2


async def test_other_refusals_are_no_fencing(watched):
    store, fenced = watched
    await store.abort(KEY)
    with pytest.raises(SessionAborted):
        await store.commit(KEY, 1, 1, 0, [7])
    assert not fenced


@pytest.fixture
async def away():
    backend = Backend(fake=FakeServer())
    yield backend
    backend.fake.connected = True
    await backend.close()


async def test_a_store_is_away_while_a_call_waits_for_it(away):
    store = await away.store()
    assert store.away_s == 0
    away.fake.connected = False
    call = store.get(KEY)
    await until(lambda: store.away_s > 0.1)
    away.fake.connected = True
    with pytest.raises(NotFound):
        await call
    assert store.away_s == 0


async def test_a_store_that_nobody_waits_for_any_more_is_not_known_to_be_away(away):
    store = await away.store(writer=WriterOptions(patience_s=0.2))
    away.fake.connected = False
    with pytest.raises(StoreError):
        await store.get(KEY)
    await until(lambda: store.away_s == 0)


class NoWorkers:
    """A pool that is only told addresses."""

    def set_addresses(self, role, addresses, beyond) -> None:
        assert not addresses
        assert not beyond


async def test_an_orchestrator_without_sessions_notices_that_its_redis_is_away():
    absence = Outage()
    with EmbeddedRedis() as server:
        registry = WorkerRegistry(server.url)
        looking = asyncio.create_task(
            discover(NoWorkers(), registry, dict.fromkeys(Role, ()), absence)
        )
        await asyncio.sleep(0.1)
        assert absence.seconds == 0
        server.end_process()
        await until(lambda: absence.seconds > 0)
        server.start()
        await until(lambda: absence.seconds == 0)
        await end(looking)


def test_an_absence_lasts_from_the_first_fault_to_the_first_answer():
    now = [10.0]
    absence = Outage(lambda: now[0])
    assert absence.seconds == 0
    absence.begin()
    now[0] = 12.0
    absence.begin()
    assert absence.seconds == 2
    absence.end()
    absence.end()
    assert absence.seconds == 0
    absence.begin()
    assert absence.seconds == 0
