"""What a client sees of a Redis that is away, comes back empty, or never got what was sent."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.session.ports import SessionKey
from orchestrator.session.spec_record import dump_spec, load_spec
from orchestrator.steering.config import Limits
from orchestrator.store import StoreOptions
from services.contract.types import VerifyMode
from services.runtime.redis_client import open_client
from tests.integration.cluster import PATIENT, PROMPT, Cluster, plain, start_verifier
from tests.integration.front_door import FrontDoor, behind_a_door, leave_in_the_store
from tests.waiting import until

OK = grpc.StatusCode.OK
LONG = 150
QUICK = StoreOptions(lease_ms=600)
RELAXED = replace(QUICK, relaxed=True)


@contextmanager
def stopped(running: Cluster):
    """Redis keeps its sockets open and answers nothing."""
    assert running.redis.pid is not None
    os.kill(running.redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.redis.pid, signal.SIGCONT)


def restart_empty(running: Cluster) -> None:
    assert running.redis.pid is not None
    os.kill(running.redis.pid, signal.SIGKILL)
    running.redis.restart()


@asynccontextmanager
async def one(keep: StoreOptions, **options) -> AsyncIterator[tuple[Cluster, FrontDoor]]:
    """An orchestrator with one verifier, and its front door."""
    made = behind_a_door([await start_verifier()], [], PATIENT, keep, **options)
    async with made as running_and_door:
        yield running_and_door


async def test_a_redis_that_restarts_empty_is_only_a_pause():
    async with one(QUICK) as (running, door):
        reading = await door.under_way(LONG, said=10)
        restart_empty(running)
        await reading.end()
        assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))
        assert (await door.resume("s", 7).end()).tokens == reading.tokens[7:]


async def test_a_redis_that_is_full_now_and_then_is_only_a_pause():
    async with one(QUICK) as (running, door):
        client = open_client(running.redis.url)
        readings = [door.generate(f"s-{length}", length) for length in range(4, 20)]
        while not all(reading.status for reading in readings):
            for most, seconds in ((1, 0.03), (0, 0.15)):
                await client.config_set("maxmemory", most)
                await asyncio.sleep(seconds)
        await client.aclose()
        assert {reading.status for reading in readings} == {OK}
        for length, reading in enumerate(readings, 4):
            assert reading.tokens == plain(PROMPT, length)


async def test_a_session_that_nobody_works_on_is_gone_with_an_empty_redis():
    async with one(QUICK) as (running, door):
        await door.generate("s", 5).end()
        restart_empty(running)
        assert (await door.resume("s", 0).end()).status is grpc.StatusCode.NOT_FOUND


async def test_with_required_nothing_is_sent_while_redis_does_not_answer():
    async with one(QUICK) as (running, door):
        reading = await door.under_way(LONG)
        with stopped(running):
            await asyncio.sleep(0.2)
            before, state = len(reading.tokens), running.inference.live.get("default/s").state
            # What was acknowledged may still be on its way to the reader.
            await asyncio.sleep(1)
            # A verifier goes no further than its credit.
            now = running.inference.live.get("default/s").state
            assert len(now.committed) <= now.limit + now.config.window
            assert now.limit == state.limit
            assert len(reading.tokens) <= max(before, len(state.committed))
            assert reading.status is None
        await reading.end()
        assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))


async def test_a_session_whose_deadline_passes_meanwhile_can_be_resumed():
    limits = Limits(deadline=4.0)
    async with one(QUICK, limits=limits) as (running, door):
        reading = await door.under_way(LONG)
        with stopped(running):
            await reading.end()
        assert reading.status is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: running.store.held == 0)
        tokens = list(reading.tokens)
        for _ in range(30):
            more = await door.resume("s", len(tokens)).end()
            tokens += more.tokens
            if more.status is OK:
                break
        assert tokens == plain(PROMPT, LONG)


async def test_an_abort_while_redis_does_not_answer_frees_the_workers_at_once():
    async with one(QUICK) as (running, door):
        reading = await door.under_way(LONG)
        with stopped(running):
            aborted = asyncio.create_task(door.abort("s"))
            await reading.end()
            await until(lambda: not running.verifiers[0].host.progress().sessions)
            assert not aborted.done()
        assert await aborted is OK
        assert (await door.stored("s")).status == pb.SESSION_STATUS_ABORTED


async def test_an_aborted_session_is_not_given_back_to_a_redis_that_lost_it():
    async with one(QUICK) as (running, door):
        reading = await door.under_way(LONG)
        with stopped(running):
            aborted = asyncio.create_task(door.abort("s"))
            await reading.end()
        restart_empty(running)
        assert await aborted in (OK, grpc.StatusCode.NOT_FOUND)
        assert (await door.resume("s", 0).end()).status is grpc.StatusCode.NOT_FOUND


async def test_with_relaxed_nobody_waits_for_redis():
    async with one(RELAXED) as (running, door):
        reading = await door.under_way(LONG)
        with stopped(running):
            await reading.end()
            assert (reading.status, reading.tokens) == (OK, plain(PROMPT, LONG))
        await until(lambda: not running.store._writer._pending)
        again = await door.resume("s", 100).end()
        assert (again.status, again.tokens) == (OK, reading.tokens[100:])


async def left_behind(
    running: Cluster, door: FrontDoor, name: str, kept: int, **sampling
) -> list[int]:
    """A session of which the store has `kept` tokens, and whose owner sent more, then died."""
    whole = (await door.generate(f"{name}-whole", 60, **sampling).end()).tokens
    await leave_in_the_store(running, name, whole[:kept], max_tokens=60, **sampling)
    return whole


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "coupled"]
)
async def test_what_a_relaxed_store_did_not_keep_comes_again_unchanged(sampling):
    async with one(RELAXED) as (running, door):
        whole = await left_behind(running, door, "s", 10, **sampling)
        ends = [await door.resume("s", offset).end() for offset in (35, 60, 0)]
        assert [end.status for end in ends] == [OK] * 3
        assert [end.tokens for end in ends] == [whole[35:], [], whole]
        beyond = await left_behind(running, door, "t", 10, **sampling)
        assert (await door.resume("t", 61).end()).status is grpc.StatusCode.OUT_OF_RANGE
        assert (await door.resume("t", 0).end()).tokens == beyond


@pytest.mark.parametrize("rule", ["STANDARD", "BLOCK"])
async def test_what_a_relaxed_store_did_not_keep_is_lost_where_it_would_come_out_otherwise(rule):
    async with one(RELAXED) as (running, door):
        await left_behind(running, door, "s", 10, temperature=1.0)
        await set_mode(running, SessionKey("default", "s"), rule)
        assert (await door.resume("s", 35).end()).status is grpc.StatusCode.DATA_LOSS
        rest = await door.resume("s", 10).end()
        assert (rest.status, len(rest.tokens)) == (OK, 50)


async def set_mode(running: Cluster, key: SessionKey, rule: str) -> None:
    """As a drafter that samples would have had it resolved."""
    stored = await running.store.get(key)
    spec = replace(load_spec(stored.resolved, stored.prompt), mode=VerifyMode[rule])
    client = open_client(running.redis.url)
    await client.hset("paceline:{default/s}:meta", "resolved", dump_spec(spec))
    await client.aclose()


async def test_with_required_an_offset_beyond_what_is_stored_is_out_of_range():
    async with one(QUICK) as (running, door):
        whole = await left_behind(running, door, "s", 10)
        assert (await door.resume("s", 35).end()).status is grpc.StatusCode.OUT_OF_RANGE
        rest = await door.resume("s", 10).end()
        assert (rest.status, rest.tokens) == (OK, whole[10:])
