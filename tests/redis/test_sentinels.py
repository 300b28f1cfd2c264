"""A master, a replica and three sentinels: who is asked, and what a failover leaves."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from orchestrator.session.ports import SessionKey
from orchestrator.store import RedisSessionStore, WriterOptions, connect
from services.contract.errors import StartError, StoreError
from services.contract.types import Role, WorkerDescription
from services.runtime.registry import Registration, WorkerRegistry
from testkit.redis_servers import Watched
from tests.contracts.backends import KEY, NEW
from tests.contracts.owners import Owner
from tests.redis.servers import watched
from tests.waiting import until

ASKING = ("+@connection", "+sentinel|masters")
"""What a user of sentinels needs, as docs/operating.md has it."""


@pytest.fixture
async def redis() -> AsyncIterator[Watched]:
    async with watched() as made:
        yield made


async def test_a_master_that_dies_is_only_a_pause(redis):
    """The text is whole, whatever its replica had; the registry is there again, too."""
    store, registry = await connect(redis.url()), WorkerRegistry(redis.url())
    worker = WorkerDescription("w1", Role.VERIFIER)
    async with Registration(redis.url(), worker, "127.0.0.1:9", heartbeat_s=0.1):
        owner = await Owner.create(store, 1)
        assert len(await registry.list()) == 1
        redis.master.kill()
        for number in range(2, 50):
            assert await owner.write(number) == number
        assert list((await store.get(KEY)).committed) == owner.text
        assert owner.refused == []

        async def seen() -> bool:
            return len(await registry.list()) == 1

        await until(seen)
        role = await redis.replica.ask("ROLE")
        assert role[0] == "master"
    await registry.close()
    await store.close()


async def test_a_master_that_hangs_is_left(redis):
    store = await connect(redis.url())
    owner = await Owner.create(store, 1)
    assert redis.master.process is not None
    os.kill(redis.master.process.pid, signal.SIGSTOP)
    assert await owner.write(2) == 2
    os.kill(redis.master.process.pid, signal.SIGCONT)
    assert await owner.write(3) == 3
    assert list((await store.get(KEY)).committed) == [1, 2, 3]
    await store.close()


async def test_a_sentinel_that_dies_is_not_missed(redis):
    redis.sentinels[0].kill()
    store = await connect(redis.url())
    assert (await store.create(KEY, NEW)).created
    await store.close()


async def test_a_service_that_no_sentinel_knows_is_one_clear_line(redis):
    with pytest.raises(StartError, match="does not answer: No master found for 'other'") as told:
        await connect(redis.url("other"))
    assert "\n" not in str(told.value)


async def test_sentinels_and_servers_have_passwords_of_their_own(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of-sentinels\n")
    async with watched() as redis:
        for one in (redis.master, redis.replica):
            await one.ask("CONFIG", "SET", "masterauth", "of-servers")
            await one.ask("CONFIG", "SET", "requirepass", "of-servers")
        for one in redis.sentinels:
            await one.ask("SENTINEL", "SET", "pace", "auth-pass", "of-servers")
            await one.ask("ACL", "SETUSER", "asker", "on", ">of-sentinels", *ASKING)
            await one.ask("ACL", "SETUSER", "default", "off")
        options = f"?sentinel_username=asker&sentinel_password_file={secret}"
        store = await connect(redis.url(login=":of-servers@", options=options))
        assert (await store.create(KEY, NEW)).created
        await store.close()
        for wrong in (redis.url(login=":of-servers@"), redis.url(options=options)):
            with pytest.raises(StartError) as told:
                await connect(wrong)
            assert "of-s" not in str(told.value)


async def open_with(redis: Watched, replicas: int, patience_s: float = 60.0) -> RedisSessionStore:
    return await connect(redis.url(), writer_options=WriterOptions(patience_s, replicas=replicas))


async def test_what_a_replica_has_is_there_when_owner_and_master_die_together(redis):
    store = await open_with(redis, 1)
    owner = await Owner.create(store, 1)
    for number in range(200):
        await owner.write(number)
    redis.master.kill()
    await store.close(0)
    other = await open_when_it_can_be(redis)
    assert list((await other.acquire(KEY, "o2")).committed) == owner.text
    await other.close()


async def open_when_it_can_be(redis: Watched) -> RedisSessionStore:
    while True:
        try:
            return await open_with(redis, 0)
        except StartError:
            await asyncio.sleep(0.1)


async def test_a_write_waits_for_a_replica_that_hangs(redis):
    store = await open_with(redis, 1)
    owner = await Owner.create(store, 1)
    assert redis.replica.process is not None
    os.kill(redis.replica.process.pid, signal.SIGSTOP)
    writes = [owner.write(2), owner.write(3)]
    ends = [store.get(KEY), store.create(SessionKey("acme", "other"), NEW)]
    await asyncio.sleep(2.5)
    assert not any(write.done() for write in writes)
    assert not any(end.done() for end in ends)
    assert store.away_s > 1
    assert not await store.answers()
    os.kill(redis.replica.process.pid, signal.SIGCONT)
    assert await asyncio.gather(*writes) == [2, 3]
    await asyncio.gather(*ends)
    assert len(await store.rounds(KEY)) == 3
    await store.close()


async def test_a_write_that_no_replica_takes_fails_once_patience_ends(redis):
    store = await open_with(redis, 1, patience_s=1.0)
    owner = await Owner.create(store, 1)
    redis.replica.kill()
    with pytest.raises(StoreError, match="does not answer: TooFewReplicas"):
        await owner.write(2)
    await store.close()


async def test_more_replicas_than_there_are_is_one_clear_line_at_the_start(redis):
    with pytest.raises(StartError, match="has too few replicas: 1 of 2 have a write"):
        await open_with(redis, 2)


async def test_min_replicas_to_write_is_a_pause(redis):
    store = await connect(redis.url())
    owner = await Owner.create(store, 1)
    await redis.master.ask("CONFIG", "SET", "min-replicas-to-write", "2")
    write = owner.write(2)
    await asyncio.sleep(0.5)
    assert not write.done()
    await redis.master.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    assert await write == 2
    await store.close()
