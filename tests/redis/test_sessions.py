"""What clients see while the Redis below them is resharded, or fails over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from orchestrator.session.ports import SessionKey
from orchestrator.store import StoreOptions
from tests.integration.cluster import PATIENT, PROMPT, orchestrator, plain, start_verifier
from tests.integration.front_door import FrontDoor, doors
from tests.redis.servers import redis_cluster, slot_of, watched
from tests.waiting import until

QUICK = StoreOptions(lease_ms=600)
OK = grpc.StatusCode.OK
LONG = 150
SLOT = slot_of(SessionKey("default", "s"))


@dataclass
class Named:
    """As much of a Redis as an orchestrator wants to know."""

    url: str


@asynccontextmanager
async def two_on(url: str) -> AsyncIterator[list[FrontDoor]]:
    """Two orchestrators that share a verifier and this Redis."""
    verifier = await start_verifier()
    redis: Any = Named(url)
    try:
        async with AsyncExitStack() as stack:
            made = [
                await stack.enter_async_context(
                    orchestrator(o, redis, [verifier], [], PATIENT, QUICK)
                )
                for o in ("o1", "o2")
            ]
            yield await stack.enter_async_context(doors(*made))
    finally:
        verifier.stop.set()
        await asyncio.wait([verifier.task])


async def test_a_text_is_unharmed_while_its_slot_moves_and_another_orchestrator_goes_on_with_it():
    async with redis_cluster(spare=True) as redis, two_on(redis.url) as (one, other):
        first = await one.under_way(LONG)
        await redis.move(SLOT, redis.masters[3], pause=0.05)
        await until(lambda: len(first.tokens) > 20)
        moving = asyncio.create_task(redis.move(SLOT, redis.masters[1], pause=0.05))
        second = await other.resume("s", 7).end()
        await first.end()
        await moving
        assert first.status in (OK, grpc.StatusCode.ABORTED)
        assert first.tokens == plain(PROMPT, LONG)[: len(first.tokens)]
        assert (second.status, second.tokens) == (OK, plain(PROMPT, LONG)[7:])


async def test_a_text_is_unharmed_by_a_failover_of_its_master():
    async with redis_cluster(replicas=True) as redis, two_on(redis.url) as (one, other):
        reading = await one.under_way(LONG)
        owner = await redis.owner(SLOT)
        await redis.replicas[redis.masters.index(owner)].ask("CLUSTER", "FAILOVER")
        await reading.end()
        assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))
        assert (await other.resume("s", 0).end()).tokens == reading.tokens


async def test_a_text_is_unharmed_by_the_death_of_its_master_in_a_cluster():
    async with redis_cluster(replicas=True) as redis, two_on(redis.url) as (one, other):
        reading = await one.under_way(LONG)
        (await redis.owner(SLOT)).kill()
        await reading.end()
        assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))
        assert (await other.resume("s", 100).end()).tokens == reading.tokens[100:]


async def test_a_text_is_unharmed_by_the_death_of_the_master_that_sentinels_watch():
    async with watched() as redis, two_on(redis.url()) as (one, other):
        reading = await one.under_way(LONG)
        redis.master.kill()
        await reading.end()
        assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))
        assert (await other.resume("s", 100).end()).tokens == reading.tokens[100:]
