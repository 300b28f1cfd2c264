"""A server that kept a session's record and lost its text: nothing is built on what is gone."""

import logging

import pytest

from orchestrator.store import StoreOptions, connect
from orchestrator.store.codec import keys_of
from orchestrator.store.eviction import warn_of_eviction
from services.contract.errors import DataLoss
from services.contract.types import FinishReason, SessionStatus
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.backends import KEY, Backend
from tests.contracts.owners import Owner, text_of
from tests.contracts.replicas import ask
from tests.waiting import until

TEXT = keys_of(StoreOptions().prefix, KEY)[1]
QUICK = StoreOptions(lease_ms=300)

TEARS = {
    "evicted": lambda client: client.delete(TEXT),
    "cut": lambda client: client.set(TEXT, b"\x07\x00\x00\x00"),
    "cut within a token": lambda client: client.set(TEXT, b"\x07\x00\x00"),
    "longer": lambda client: client.append(TEXT, b"\x09\x00\x00\x00"),
}
torn = pytest.mark.parametrize("tear", TEARS)


@torn
async def test_a_commit_gives_the_whole_text_back(backend, store, tear):
    owner = await Owner.create(store, 7, 8)
    await TEARS[tear](backend.client())
    assert await owner.write(9) == 3
    assert await text_of(store) == [7, 8, 9]
    assert await owner.write(10) == 4
    assert owner.refused == []
    assert all([await backend.client().pttl(key) > 0 for key in await backend.keys()])


@torn
async def test_an_end_gives_the_whole_text_back(backend, store, tear):
    await (await Owner.create(store)).write(7, 8)
    await TEARS[tear](backend.client())
    await store.finish(KEY, 1, 2, FinishReason.LENGTH)
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.FINISHED, (7, 8))


async def test_a_pause_gives_the_whole_text_back(backend, store):
    await (await Owner.create(store)).write(7, 8)
    await backend.client().delete(TEXT)
    await store.pause(KEY, 1)
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.PAUSED, (7, 8))


@pytest.mark.parametrize("relaxed", [False, True], ids=["required", "relaxed"])
async def test_a_session_that_writes_nothing_gets_its_text_back_as_well(backend, relaxed):
    store = await backend.store(StoreOptions(lease_ms=300, relaxed=relaxed))
    owner = await Owner.create(store, 7, 8)
    await until(lambda: not store._writer._pending)
    assert await text_of(store) == [7, 8]
    client = backend.client()
    await client.delete(TEXT)
    await until(lambda: client.strlen(TEXT))
    assert await text_of(store) == [7, 8]
    assert owner.refused == []


async def test_with_relaxed_the_next_commit_gives_the_text_back(backend):
    store = await backend.store(StoreOptions(relaxed=True))
    owner = await Owner.create(store, 7, 8)
    assert await text_of(store) == [7, 8]
    await backend.client().delete(TEXT)
    await owner.write(9)
    assert await text_of(store) == [7, 8, 9]


@torn
@pytest.mark.parametrize("call", ["get", "acquire"])
async def test_nobody_else_goes_on_with_it_nor_takes_it_from_its_owner(backend, store, tear, call):
    other = await backend.store()
    owner = await Owner.create(store, 7, 8)
    await TEARS[tear](backend.client())
    with pytest.raises(DataLoss, match="of its 2 tokens"):
        await (other.get(KEY) if call == "get" else other.acquire(KEY, "o2"))
    assert await owner.write(9) == 3
    assert (await other.acquire(KEY, "o2")).committed == (7, 8, 9)


async def test_without_an_owner_the_text_is_a_loss(backend, store):
    owner = await Owner.create(store, 7, 8)
    owner.release()
    await backend.client().delete(TEXT)
    with pytest.raises(DataLoss):
        await owner.write(9)
    with pytest.raises(DataLoss):
        await store.acquire(KEY, "o2")


async def test_one_acknowledged_write_is_needed_before_a_text_is_given_back_again(backend, store):
    owner = await Owner.create(store, 7)
    store._leases.get(KEY, 1).mended = True
    await backend.client().delete(TEXT)
    with pytest.raises(DataLoss):
        await owner.write(8)
    store._leases.get(KEY, 1).mended = False
    assert await owner.write(9) == 3
    assert not store._leases.get(KEY, 1).mended


async def test_an_ephemeral_end_is_no_loss(backend, store):
    await (await Owner.create(store)).write(7)
    await backend.client().hset(keys_of(StoreOptions().prefix, KEY)[0], "ephemeral", "1")
    await store.finish(KEY, 1, 1, FinishReason.STOP)
    stored = await store.get(KEY)
    assert stored.status is SessionStatus.FINISHED
    assert (stored.committed, stored.committed_len) == ((), 1)


async def test_a_finished_text_that_is_gone_is_a_loss(backend, store):
    await (await Owner.create(store)).write(7)
    await store.finish(KEY, 1, 1, FinishReason.STOP)
    await backend.client().delete(TEXT)
    with pytest.raises(DataLoss, match="does it evict keys"):
        await store.get(KEY)


async def test_a_server_that_evicts_gets_every_text_back_or_loses_it_with_a_word(caplog):
    """A real one, whose memory runs out while sessions write."""
    with EmbeddedRedis() as server:
        await ask(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        backend = Backend(url=server.url)
        store = await connect(server.url)
        backend.opened.append(store)
        owner = await Owner.create(store, *range(100))
        client = backend.client()
        await client.config_set("maxmemory", (await client.info("memory"))["used_memory"] + 200_000)
        for number in range(10_000):
            await client.set(f"filler-{number}", b"x" * 1_000)
            if not await client.exists(TEXT):
                break
        assert not await client.exists(TEXT)
        await client.config_set("maxmemory", 0)
        # Whether the record went as well is the server's choice.
        if await client.exists(keys_of(StoreOptions().prefix, KEY)[0]):
            assert await owner.write(100) == 101
            assert await text_of(store) == list(range(101))
        else:
            with pytest.raises(DataLoss):
                await owner.write(100)
        await backend.close()
    assert "maxmemory-policy is allkeys-random" in caplog.text


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "noeviction"])
async def test_a_server_that_may_evict_is_warned_of_at_start(policy, caplog):
    with EmbeddedRedis() as server:
        await ask(server, "CONFIG", "SET", "maxmemory-policy", policy)
        await (await connect(server.url)).close()
    warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == (policy != "noeviction")
    assert all(policy in message and "noeviction" in message for message in warned)


@pytest.mark.parametrize("refused", [["info"], ["config"], ["info", "config"]], ids="+".join)
async def test_a_server_that_refuses_to_say_is_asked_otherwise(refused, caplog):
    """As managed servers do, and access lists."""
    with EmbeddedRedis() as server:
        await ask(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
        rules = ["on", "nopass", "~*", "&*", "+@all", *(f"-{command}" for command in refused)]
        await ask(server, "ACL", "SETUSER", "limited", *rules)
        client = Backend(url=f"{server.url}?username=limited&password=x").client()
        await warn_of_eviction(client)
        await client.aclose()
    [message] = [record.message for record in caplog.records]
    assert ("could not be checked" if len(refused) == 2 else "allkeys-lfu") in message
