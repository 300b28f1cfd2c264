"""Sessions, the registry and phrases in a cluster of three masters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis import exceptions
from redis.cluster import key_slot

from orchestrator.session.ports import SessionKey
from orchestrator.store import RedisSessionStore, StoreOptions, WriterOptions, codec, connect
from orchestrator.store.lanes import Lanes
from services.contract.errors import NotFound, StartError, StoreError
from services.contract.types import FinishReason, Role, WorkerDescription
from services.drafter.methods.ngram.archive import RedisArchive
from services.runtime.redis_client import is_away
from services.runtime.registry import Registration, WorkerRegistry
from testkit.redis_servers import RedisCluster, Server, linked
from tests.contracts.owners import Owner
from tests.redis.servers import RIGHTS, named_in, redis_cluster, slot_of
from tests.waiting import until


@pytest.fixture
async def cluster() -> AsyncIterator[RedisCluster]:
    async with redis_cluster(spare=True) as made:
        yield made


@pytest.fixture
async def copied() -> AsyncIterator[RedisCluster]:
    async with redis_cluster(replicas=True) as made:
        yield made


async def owners_of(cluster: RedisCluster) -> dict[int, int]:
    """Which port serves each slot."""
    slots = await cluster.masters[0].ask("CLUSTER", "SLOTS")
    return {slot: int(s[2][1]) for s in slots for slot in range(s[0], s[1] + 1)}


async def on_each(cluster: RedisCluster, store: RedisSessionStore) -> list[Owner]:
    """One session on each of the first three masters."""
    owner_of = await owners_of(cluster)
    keys = [named_in(owner_of, one.port) for one in cluster.masters[:3]]
    return [await Owner.create(store, 1, key=key) for key in keys]


async def keep_writing(owner: Owner, stop: asyncio.Event, pause: float = 0.002) -> None:
    """Commit after commit; each must be stored as the next."""
    while not stop.is_set():
        length = len(owner.text) + 1
        assert await owner.write(length) == length
        await asyncio.sleep(pause)


@asynccontextmanager
async def written_meanwhile(store: RedisSessionStore, owners: list[Owner]) -> AsyncIterator[None]:
    """Sessions grow inside the block, and each is stored as its owner wrote it."""
    stop = asyncio.Event()
    writing = [asyncio.create_task(keep_writing(owner, stop)) for owner in owners]
    yield
    stop.set()
    await asyncio.gather(*writing)
    for owner in owners:
        assert list((await store.get(owner.key)).committed) == owner.text
        assert owner.refused == []


async def open_when_it_can_be(url: str) -> RedisSessionStore:
    """A store, once every slot has a master again."""
    while True:
        try:
            return await connect(url)
        except StartError:
            await asyncio.sleep(0.1)


async def test_sessions_of_every_node_are_written_read_and_taken_over(cluster):
    store, other = await connect(cluster.url), await connect(cluster.url)
    owners = await on_each(cluster, store)
    assert [await owner.write(2, 3) for owner in owners] == [3, 3, 3]
    for owner in owners:
        taken = await other.acquire(owner.key, "o2")
        assert (taken.committed, taken.term) == ((1, 2, 3), 2)
        assert len(await other.rounds(owner.key)) == 2
        await other.finish(owner.key, 2, 3, FinishReason.STOP)
        assert (await store.get(owner.key)).finish_reason is FinishReason.STOP
    with pytest.raises(NotFound):
        await store.get(SessionKey("acme", "nobody"))
    assert await store.answers()
    await store.close()
    await other.close()


async def test_scripts_that_a_node_forgot_are_taught_again(cluster):
    store = await connect(cluster.url)
    owners = await on_each(cluster, store)
    for master in cluster.masters:
        await master.ask("SCRIPT", "FLUSH")
    assert [await owner.write(2) for owner in owners] == [2, 2, 2]
    await store.close()


async def test_workers_that_register_in_a_cluster_are_seen(cluster):
    worker = WorkerDescription("w1", Role.DRAFTER, methods=("ngram",))
    registry = WorkerRegistry(cluster.url)
    async with Registration(cluster.url, worker, "127.0.0.1:9", heartbeat_s=0.05):
        assert [one.description for one in await registry.list()] == [worker]
        for master in cluster.masters:
            await master.ask("SCRIPT", "FLUSH")
        assert [one.address for one in await registry.list(Role.DRAFTER)] == ["127.0.0.1:9"]
    assert await registry.list() == []
    await registry.close()


async def move_all(cluster: RedisCluster, target: Server) -> set[int]:
    """Move every slot that has a key; which these were."""
    told = [await one.ask("KEYS", "*") for one in cluster.masters if one is not target]
    slots = {
        key_slot(key if isinstance(key, bytes) else key.encode()) for keys in told for key in keys
    }
    for slot in slots:
        await cluster.move(slot, target, pause=0.05)
    return slots


async def test_workers_and_phrases_are_there_while_their_slots_move_and_afterwards(cluster):
    registry, archive = WorkerRegistry(cluster.url), RedisArchive(cluster.url)
    first, second = (WorkerDescription(f"w{n}", Role.DRAFTER, methods=("ngram",)) for n in (1, 2))

    async def loaded() -> tuple[int, ...]:
        archive.load("a")
        arrived = []
        await until(lambda: arrived.append(archive.arrived()) or arrived[-1])
        return arrived[-1][1]

    async with Registration(cluster.url, first, "127.0.0.1:8", heartbeat_s=0.05):
        assert [one.description for one in await registry.list()] == [first]
        archive.keep("a", [1, 2, 3])
        assert await loaded() == (1, 2, 3)
        moving = asyncio.create_task(move_all(cluster, cluster.masters[3]))
        while not moving.done():
            assert [one.description for one in await registry.list()] == [first]
            await asyncio.sleep(0.01)
        assert len(await moving) >= 2
        async with Registration(cluster.url, second, "127.0.0.1:9", heartbeat_s=0.05):
            assert [one.description for one in await registry.list()] == [first, second]
        assert await loaded() == (1, 2, 3)
    assert await registry.list() == []
    await registry.close()
    await asyncio.to_thread(archive.close)


async def test_a_user_with_the_rights_that_are_documented_is_enough(cluster, caplog):
    for one in cluster.masters:
        await one.ask("ACL", "SETUSER", "pace", "on", ">secret", *RIGHTS)
    url = cluster.url.replace("://", "://pace:secret@")
    store, registry, archive = await connect(url), WorkerRegistry(url), RedisArchive(url)
    assert [await owner.write(2) for owner in await on_each(cluster, store)] == [2, 2, 2]
    await store.close()
    async with Registration(url, WorkerDescription("w1", Role.DRAFTER), "127.0.0.1:9"):
        assert len(await registry.list()) == 1
    await registry.close()
    archive.keep("a", [1, 2, 3])
    archive.load("a")
    await until(archive.arrived)
    await asyncio.to_thread(archive.close)
    assert "secret" not in caplog.text
    assert "phrases are not kept" not in caplog.text


async def test_a_session_whose_slot_moves_meanwhile_is_written_on(cluster):
    """Also while its keys are on two nodes, one by one, and to a node that had no slot."""
    store = await connect(cluster.url, StoreOptions(lease_ms=300))
    other = await connect(cluster.url)
    owners = await on_each(cluster, store)
    slot, spare = slot_of(owners[0].key), cluster.masters[3]
    async with written_meanwhile(other, owners):
        await cluster.move(slot, spare, pause=0.1)
        await asyncio.sleep(0.2)
        await cluster.move(slot, cluster.masters[1], pause=0.1)
        await asyncio.sleep(0.2)
    for owner in owners:
        assert len(await other.rounds(owner.key)) == len(owner.text)
    assert (await cluster.owner(slot)) is cluster.masters[1]
    await store.close()
    await other.close()


async def test_a_session_begins_in_a_slot_that_moves_once_it_has_moved(cluster):
    store = await connect(cluster.url)
    key = named_in(await owners_of(cluster), cluster.masters[0].port)
    moving = asyncio.create_task(cluster.move(slot_of(key), cluster.masters[1], pause=0.5))
    await asyncio.sleep(0.2)
    owner = await Owner.create(store, 1, 2, key=key)
    await moving
    assert await owner.write(3) == 3
    await store.close()


async def test_calls_of_one_session_stay_in_order_while_its_slot_moves(cluster):
    store = await connect(cluster.url)
    owner = (await on_each(cluster, store))[0]
    moving = asyncio.create_task(cluster.move(slot_of(owner.key), cluster.masters[1], pause=0.05))
    writes = []
    while not moving.done():
        writes += [owner.write(number) for number in range(20)]
        await asyncio.sleep(0.01)
    assert await asyncio.gather(*writes) == list(range(2, len(writes) + 2))
    assert list((await store.get(owner.key)).committed) == owner.text
    assert isinstance(store._writer, Lanes)
    assert not store._writer._busy
    await store.close()


async def test_a_caller_that_leaves_changes_no_order(cluster):
    store = await connect(cluster.url)
    owner = (await on_each(cluster, store))[0]
    moving = asyncio.create_task(cluster.move(slot_of(owner.key), cluster.masters[1], pause=0.05))
    while not moving.done():
        owner.write(1).cancel()
        kept = owner.write(2)
        await asyncio.sleep(0.005)
    assert await kept == len(owner.text)
    assert list((await store.get(owner.key)).committed) == owner.text
    assert owner.refused == []
    await store.close()


async def test_nodes_that_send_calls_to_each_other_cost_no_more_than_patience(cluster):
    store = await connect(cluster.url, writer_options=WriterOptions(patience_s=1.0))
    owner = (await on_each(cluster, store))[0]
    slot, ids = slot_of(owner.key), [await one.ask("CLUSTER", "MYID") for one in cluster.masters]
    first = cluster.masters[0]
    # The first asks to ask the second, which knows nothing of it.
    await first.ask("DEL", f"paceline:{{{codec.tag_of(owner.key)}}}:meta")
    await first.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
    with pytest.raises(StoreError):
        await store.get(owner.key)
    await first.ask("CLUSTER", "SETSLOT", slot, "STABLE")
    with pytest.raises(NotFound):
        await store.get(owner.key)
    await store.close()


async def test_a_node_that_is_away_holds_up_its_own_sessions_alone(cluster):
    store = await connect(cluster.url, writer_options=WriterOptions(patience_s=1.5))
    owners = await on_each(cluster, store)
    cluster.masters[0].kill()
    held = owners[0].write(2)
    async with asyncio.timeout(1):
        for number in range(20):
            for owner in owners[1:]:
                await owner.write(number)
    assert store.away_s > 0
    assert await store.answers()
    with pytest.raises(StoreError):
        await held
    await store.close()


@pytest.mark.parametrize("replicas", [0, 1])
async def test_a_failover_on_purpose_harms_no_text(copied, replicas):
    store = await connect(copied.url, writer_options=WriterOptions(replicas=replicas))
    owners = await on_each(copied, store)

    async def taken_over() -> bool:
        return (await copied.owner(slot_of(owners[0].key))) is copied.replicas[0]

    async with written_meanwhile(store, owners):
        await asyncio.sleep(0.2)
        await copied.replicas[0].ask("CLUSTER", "FAILOVER")
        await until(taken_over)
        await linked(copied.masters[0])
        await asyncio.sleep(0.2)
    await store.close()


async def test_a_master_that_dies_is_only_a_pause(copied):
    store = await connect(copied.url)
    owners = await on_each(copied, store)
    async with written_meanwhile(store, owners):
        await asyncio.sleep(0.2)
        copied.masters[0].kill()
        before = len(owners[0].text)
        await until(lambda: len(owners[0].text) > before + 20)
    await store.close()


async def test_what_a_dead_master_acknowledged_to_a_replica_needs_no_owner(copied):
    store = await connect(copied.url, writer_options=WriterOptions(replicas=1))
    owner = (await on_each(copied, store))[0]
    for number in range(100):
        await owner.write(number)
    copied.masters[0].kill()
    await store.close()
    # What is left has no replica to wait for.
    other = await open_when_it_can_be(copied.url)
    assert list((await other.acquire(owner.key, "o2")).committed) == owner.text
    await other.close()


async def test_a_cluster_that_is_named_as_one_server_is_one_clear_line(cluster):
    single = cluster.url.replace("redis+cluster", "redis").partition(",")[0]
    with pytest.raises(Exception, match=r"is a node of a cluster: write redis\+cluster://"):
        await connect(single)


def test_cross_slot_is_no_fault_that_is_waited_for():
    assert not is_away(exceptions.ClusterCrossSlotError("x"))
