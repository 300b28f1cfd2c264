"""Sessions that nobody reads, that nobody may go on with, and those whose record is broken."""

import asyncio

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.session.ports import SessionKey
from orchestrator.steering.config import Limits
from orchestrator.store import StoreOptions
from services.contract.types import Role
from services.runtime.redis_client import open_client
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    Cluster,
    plain,
    start_drafter,
    start_verifier,
)
from tests.integration.front_door import behind_a_door, leave_in_the_store
from tests.waiting import until

OK = grpc.StatusCode.OK
LONG = 150


async def test_a_client_that_left_costs_nothing_after_the_grace_time():
    """Workers, admission, lease, tasks: all is free, and the session can be resumed."""
    limits = Limits(detach_grace=0.2)
    keep = StoreOptions(lease_ms=600)
    verifiers, drafters = [await start_verifier()], [await start_drafter()]
    async with behind_a_door(verifiers, drafters, PATIENT, keep, limits=limits) as (running, door):
        await door.generate("warm", 5).end()
        tasks = len(asyncio.all_tasks())
        reading = await door.under_way(LONG)
        reading.call.cancel()
        await reading.end()
        await until(lambda: running.inference.active_sessions == 0)
        await until(lambda: running.store.held == 0)
        workers = (*verifiers, *drafters)
        await until(lambda: not any(worker.host.progress().sessions for worker in workers))
        await until(lambda: not any(worker.host.progress().kv_tokens_used for worker in workers))
        admission = running.inference._admission
        assert (admission.sessions, admission.tokens) == (0, 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        stored = await running.store.get(SessionKey("default", "s"))
        assert (stored.status.name, stored.lease_until_ms) == ("PAUSED", 0)
        # Nobody renews it either.
        await asyncio.sleep(1)
        assert (await running.store.get(SessionKey("default", "s"))).lease_until_ms == 0
        rest = await door.resume("s", len(reading.tokens)).end()
        while rest.status is not OK:
            rest = await door.resume("s", len(reading.tokens)).end()
        assert reading.tokens + rest.tokens == plain(PROMPT, LONG)


async def test_a_session_that_nobody_resumed_is_gone_after_its_time_and_leaves_no_key():
    keep = StoreOptions(lease_ms=300, ttl_ms=600_000)
    async with behind_a_door(
        [await start_verifier()], [], PATIENT, keep, limits=Limits(detach_grace=0.1)
    ) as (running, door):
        reading = await door.under_way(LONG)
        reading.call.cancel()
        await until(lambda: running.inference.active_sessions == running.store.held == 0)
        client = open_client(running.redis.url)
        for key in await client.keys("*"):
            assert 0 < await client.pttl(key) <= 600_000
            # Longer than leases are renewed after.
            await client.pexpire(key, 500)

        async def nothing_is_left() -> bool:
            return not await client.keys("*")

        await until(nothing_is_left)
        await client.aclose()
        assert (await door.resume("s", 0).end()).status is grpc.StatusCode.NOT_FOUND


async def stored_as(running: Cluster, name: str, **fields: bytes) -> None:
    """A session of ten tokens whose owner died, with some fields of its record overwritten."""
    await leave_in_the_store(running, name, plain(PROMPT, 10))
    client = open_client(running.redis.url)
    if fields:
        await client.hset(f"paceline:{{default/{name}}}:meta", mapping=dict(fields))
    await client.aclose()


async def test_another_target_never_goes_on_with_a_session():
    limits = Limits(verifier_wait=1.0)
    async with behind_a_door([await start_verifier()], [], PATIENT, limits=limits) as (
        running,
        door,
    ):
        await stored_as(running, "s", target_fingerprint=b"another target")
        end = await door.resume("s", 10).end()
        assert (end.status, end.tokens) == (grpc.StatusCode.UNAVAILABLE, [])
        await until(lambda: running.store.held == 0)
        stored = await door.stored("s")
        assert (stored.status, stored.committed_tokens) == (pb.SESSION_STATUS_PAUSED, 10)


async def test_a_session_waits_for_its_own_target():
    """It is resumed while only another target is there, and goes on when its own comes."""
    async with behind_a_door([await start_verifier(seed=1)], [], PATIENT) as (running, door):
        own = await start_verifier("v2")
        fingerprint = own.host.describe().model_fingerprint
        assert fingerprint != running.verifiers[0].host.describe().model_fingerprint
        await stored_as(running, "s", target_fingerprint=fingerprint.encode())
        resumed = door.resume("s", 0)
        await until(lambda: running.inference.active_sessions == 1)
        assert len(resumed.tokens) <= 10
        addresses = [worker.address for worker in (*running.verifiers, own)]
        running.pool.set_addresses(Role.VERIFIER, addresses)
        running.verifiers.append(own)
        await resumed.end()
        assert (resumed.status, resumed.tokens) == (OK, plain(PROMPT, 40))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"resolved": b"{}"}, grpc.StatusCode.DATA_LOSS),
        ({"resolved": b"[" * 100_000}, grpc.StatusCode.DATA_LOSS),
        ({"resolved": b'{"version":99}'}, grpc.StatusCode.UNAVAILABLE),
        ({"version": b"2"}, grpc.StatusCode.UNAVAILABLE),
        ({"prompt": b"\xff" * 8, "prompt_len": b"2"}, grpc.StatusCode.DATA_LOSS),
        ({"prompt": b"", "prompt_len": b"0"}, grpc.StatusCode.DATA_LOSS),
        ({"term": b"-1"}, grpc.StatusCode.DATA_LOSS),
        ({"status": b"\xff"}, grpc.StatusCode.DATA_LOSS),
    ],
    ids=range(8),
)
async def test_a_record_that_cannot_be_read_is_a_proper_status(fields, status, shared):
    running, door, names = shared
    name = f"s-{len(names)}"
    names.append(name)
    await stored_as(running, name, **fields)
    assert (await door.resume(name, 0).end()).status is status
    assert running.store.held == 0
    if "term" not in fields and "status" not in fields:
        client = open_client(running.redis.url)
        # Whoever could go on with it was not fenced.
        assert await client.hget(f"paceline:{{default/{name}}}:meta", "term") == b"1"
        await client.aclose()
    assert (await door.generate(f"{name}-next", 3).end()).status is OK


@pytest.fixture
async def shared():
    async with behind_a_door([await start_verifier()], [], PATIENT) as (running, door):
        yield running, door, []


async def test_a_repeated_request_finds_the_session_that_redis_lost():
    async with behind_a_door([await start_verifier()], [], PATIENT) as (running, door):
        first = await door.under_way(LONG)
        running.redis.restart()
        again = await door.generate("s", LONG).end()
        await first.end()
        assert again.tokens == first.tokens == plain(PROMPT, LONG)
        assert running.inference.active_sessions == 0
