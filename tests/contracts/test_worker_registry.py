"""Workers appear, report their load, and vanish."""

import asyncio
from dataclasses import replace

import pytest
import uvloop
from fakeredis import FakeServer

from orchestrator.workers.peers import Peer, Peers
from orchestrator.workers.subset import Member
from services.contract.errors import StartError, StoreError
from services.contract.types import Progress, Role, WorkerDescription
from services.runtime import presence
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.registry import RegisteredWorker, Registration, WorkerRegistry
from services.runtime.tasks import end
from testkit.chaos.proxy import Network
from tests.contracts.backends import Backend
from tests.waiting import until

VERIFIER = WorkerDescription(
    "v1", Role.VERIFIER, "m", "f", "t", 49152, 2048, (), 4096, 1, 1, "0.1", ("tree",), "float32"
)
DRAFTER = WorkerDescription(
    "d1", Role.DRAFTER, methods=("model", "ngram"), state_layers=(2, 15, 27), state_width=1728
)


def registration(backend: Backend, description=VERIFIER, address="h:1", **more) -> Registration:
    more = {"heartbeat_s": 0.05, "ttl_s": 60} | more
    return Registration(backend.url, description, address, client=backend.client(), **more)


EXPIRIES = "paceline:{workers}:expiries"


async def last_moments(backend: Backend) -> list[float]:
    """When the entries expire, in ms."""
    return [at for _, at in await backend.client().zrange(EXPIRIES, 0, -1, withscores=True)]


@pytest.fixture
def registry(backend) -> WorkerRegistry:
    return WorkerRegistry(backend.url, client=backend.client())


async def test_a_worker_is_listed_as_it_described_itself(backend, registry):
    async with registration(backend), registration(backend, DRAFTER, "h:2"):
        verifier, drafter = RegisteredWorker(VERIFIER, "h:1"), RegisteredWorker(DRAFTER, "h:2")
        assert await registry.list() == [drafter, verifier]
        assert await registry.list(Role.VERIFIER) == [verifier]
        assert await registry.list(Role.DRAFTER) == [drafter]


async def test_one_process_may_serve_both_roles(backend, registry):
    beside = replace(DRAFTER, worker_id="v1")
    async with registration(backend), registration(backend, beside):
        assert len(await registry.list()) == 2


async def test_a_stopped_worker_is_gone_at_once(backend, registry):
    worker = registration(backend, ttl_s=60)
    await worker.start()
    await worker.stop()
    await worker.stop()
    assert await registry.list() == []
    assert await backend.keys() == []


async def test_a_dead_worker_expires_alone(backend, registry):
    await registration(backend, DRAFTER, heartbeat_s=60, ttl_s=0.2).start()
    async with registration(backend):

        async def only_the_verifier() -> bool:
            return [worker.description for worker in await registry.list()] == [VERIFIER]

        await until(only_the_verifier)


async def test_heartbeats_keep_a_worker(backend):
    async with registration(backend):
        first = await last_moments(backend)

        async def renewed() -> bool:
            return min(await last_moments(backend)) > max(first) + 500

        await until(renewed)


async def test_dead_workers_leave_no_key(backend):
    await registration(backend, heartbeat_s=60, ttl_s=0.1).start()
    await until(backend.empty)


async def test_heartbeats_carry_the_load(backend, registry):
    load = Progress(steps=1)
    async with registration(backend, load=lambda: load):
        load = Progress(steps=9, sessions=3, queued_tokens=70, kv_tokens_used=5, step_ms=1.5)

        async def updated() -> bool:
            return [worker.load for worker in await registry.list()] == [load]

        await until(updated)


async def test_a_successor_of_the_same_name_keeps_its_entry(backend, registry):
    old = registration(backend, address="h:1", heartbeat_s=60, ttl_s=60)
    await old.start()
    async with registration(backend, address="h:2", heartbeat_s=60, ttl_s=60):
        await old.stop()
        assert [worker.address for worker in await registry.list()] == ["h:2"]


async def test_two_clusters_do_not_see_each_other(backend, registry):
    async with registration(backend, prefix="other:"):
        assert await registry.list() == []


async def test_an_entry_of_another_version_is_skipped(backend, registry):
    async with registration(backend):
        client = backend.client()
        for name, entry in [("x", b"garbage"), ("y", b"0" * 16 + b'{"version":2,"address":"h"}')]:
            await client.hset("paceline:{workers}:entries", name, entry)
        assert [worker.description for worker in await registry.list()] == [VERIFIER]


async def test_workers_register_again_when_the_server_lost_them():
    with EmbeddedRedis() as server:
        registry = WorkerRegistry(server.url)
        async with Registration(server.url, VERIFIER, "h:1", heartbeat_s=0.05):
            server.restart()

            async def listed() -> bool:
                return bool(await registry.list())

            await until(listed)
        await registry.close()


async def test_a_worker_outlives_an_absent_server_and_stops_cleanly():
    backend = Backend(fake=FakeServer())
    worker = registration(backend)
    registry = WorkerRegistry("", client=backend.client())
    await worker.start()
    backend.fake.connected = False
    await asyncio.sleep(0.2)
    with pytest.raises(StoreError):
        await registry.list()
    await worker.stop()
    await backend.close()


async def test_a_registry_that_refuses_is_one_clear_line():
    with pytest.raises(StartError, match="does not answer"):
        await Registration("redis://127.0.0.1:1", VERIFIER, "h:1").start()


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@pytest.fixture
def cut(valkey):
    """A way to the server that can be reset, and what resets it."""
    address = valkey.url.removeprefix("redis://")
    with Network() as network:
        proxy = network.proxy(lambda: address)
        yield f"redis://{proxy.address}", proxy.cut


@LOOPS
def test_a_worker_ends_well_whose_connection_was_reset(cut, new_loop):
    async def live(url, reset) -> None:
        worker = Registration(url, VERIFIER, "h:1", heartbeat_s=60)
        await worker.start()
        assert reset()
        await asyncio.sleep(0.2)
        await worker.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(live(*cut))


async def test_only_workers_that_come_or_go_are_news(backend, registry):
    assert await registry.news() == []
    async with registration(backend):
        assert await registry.news() == [RegisteredWorker(VERIFIER, "h:1")]
        await asyncio.sleep(0.15)
        assert await registry.news() is None
        async with registration(backend, DRAFTER, "h:2"):
            assert [one.address for one in await registry.news() or ()] == ["h:2", "h:1"]
        assert [one.address for one in await registry.news() or ()] == ["h:1"]
        assert await registry.news() is None
    assert await registry.news() == []


async def test_a_new_process_of_the_same_name_is_news(backend, registry):
    async with registration(backend):
        await registry.news()
        async with registration(backend, address="h:2", heartbeat_s=60):
            assert [one.address for one in await registry.news() or ()] == ["h:2"]


async def test_a_worker_that_dies_is_news(backend, registry):
    dying = registration(backend)
    await dying.start()
    assert len(await registry.news() or ()) == 1
    await end(dying._task)
    client = backend.client()
    for name in await client.zrange(EXPIRIES, 0, -1):
        await client.zadd(EXPIRIES, {name: 1.0})
    assert await registry.news() == []


async def test_a_reader_gets_a_whole_list_now_and_then(backend, registry):
    async with registration(backend):
        await registry.news()
        answers = [await registry.news() for _ in range(presence.MOST_QUIET + 1)]
    assert [answer is not None for answer in answers] == [False] * presence.MOST_QUIET + [True]


async def test_entries_that_do_not_count_themselves_are_news_by_their_number(backend, registry):
    """As those of an older version."""
    async with registration(backend):
        await registry.news()
        client, (entries, *_) = backend.client(), presence.keys_of("paceline:", "workers")
        await client.hset(entries, "verifier/old", await client.hget(entries, "verifier/v1"))
        assert len(await registry.news() or ()) == 2


async def test_orchestrators_know_of_each_other(backend):
    readers = Peers(backend.url, client=backend.client())
    first, second = Member("o1", "a"), Member("o2")
    async with Peer(backend.url, first, client=backend.client()):
        async with Peer(backend.url, second, client=backend.client()):
            assert sorted(await readers.news() or ()) == [first, second]
            assert await readers.news() is None
        assert await readers.news() == [first]


async def test_what_is_no_orchestrators_entry_is_skipped(backend):
    readers, client = Peers(backend.url, client=backend.client()), backend.client()
    async with Peer(backend.url, Member("o1"), client=backend.client()):
        entries = presence.keys_of("paceline:", "orchestrators")[0]
        for number, text in enumerate(('"o"', "{", "{}", '{"name": 5}', '{"name": ""}', "[]")):
            await client.hset(entries, str(number), "0" * 16 + text)
        await client.hset(entries, "z", "0" * 16 + '{"name": "o9", "zone": 7}')
        assert sorted(await readers.news() or ()) == [Member("o1"), Member("o9")]
