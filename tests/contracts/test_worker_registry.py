"""Workers appear, report their load, and vanish."""

import asyncio
from dataclasses import replace

import pytest
import uvloop
from fakeredis import FakeServer

from orchestrator.session.ports import SessionKey
from orchestrator.store import EmbeddedRedis, StoreOptions, connect
from services.contract.errors import StartError, StoreError
from services.contract.types import Progress, Role, WorkerDescription
from services.runtime.registry import RegisteredWorker, Registration, WorkerRegistry
from testkit.chaos.proxy import Network
from tests.contracts.backends import NEW, Backend
from tests.waiting import until

VERIFIER = WorkerDescription(
    "v1", Role.VERIFIER, "m", "f", "t", 49152, 2048, (), 4096, 1, 1, "0.1", ("tree",), "float32"
)
DRAFTER = WorkerDescription(
    "d1", Role.DRAFTER, methods=("model", "ngram"), state_layers=(2, 15, 27), state_width=1728
)


def registration(backend: Backend, description=VERIFIER, address="h:1", **more) -> Registration:
    more = {"heartbeat_s": 0.05, "ttl_s": 0.5} | more
    return Registration(backend.url, description, address, client=backend.client(), **more)


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
        assert len(await registry.list()) == 2

        async def only_the_verifier() -> bool:
            return [worker.description for worker in await registry.list()] == [VERIFIER]

        await until(only_the_verifier)
        await asyncio.sleep(0.6)
        assert await only_the_verifier()


async def test_dead_workers_leave_no_key(backend):
    await registration(backend, heartbeat_s=60, ttl_s=0.1).start()
    await asyncio.sleep(0.3)
    assert await backend.keys() == []


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


async def test_a_worker_ends_whose_heartbeat_loses_a_cancellation(backend):
    worker, under_way, lost = registration(backend), asyncio.Event(), []
    await worker.start()

    async def beat(**_) -> None:
        try:
            under_way.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            # As `asyncio.wait_for` of Python 3.11 does with the answer in its hands.
            if lost:
                raise
            lost.append(1)

    worker._beat = beat
    await under_way.wait()
    async with asyncio.timeout(30):
        await worker.stop()


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


@LOOPS
def test_a_store_writes_on_whose_connection_was_reset(cut, new_loop):
    async def live(url, reset) -> None:
        store = await connect(url, StoreOptions(prefix="reset:"))
        key = SessionKey("acme", new_loop.__module__)
        await store.create(key, NEW)
        assert reset()
        await asyncio.sleep(0.2)
        assert await store.commit(key, 1, 1, 0, [7]) == 1
        await store.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(live(*cut))
