"""Two orchestrators in front of the same workers and the same Redis: one session has one owner."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.store import StoreOptions
from orchestrator.workers.link import LinkLimits
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    Cluster,
    Worker,
    cluster,
    engine,
    orchestrator,
    plain,
    start_core,
    start_drafter,
    verifier_core,
)
from tests.integration.front_door import FrontDoor, Reading, doors
from tests.waiting import until

QUICK = StoreOptions(lease_ms=600)
LONG = 150
# A verifier that is torn away is noticed by its silence.
SHORT = LinkLimits(silence=4.0, engine_stall=120.0)
ABORTED, OK = grpc.StatusCode.ABORTED, grpc.StatusCode.OK


async def unhurried() -> Worker:
    """A verifier whose steps take so long that whoever asks meanwhile comes before their end."""
    slow = engine(batch_invariant=None)
    forward = slow.forward
    slow.forward = lambda segments: time.sleep(0.01) or forward(segments)
    return await start_core(verifier_core, slow, "v1", slow.bundle)


@asynccontextmanager
async def two(
    verifiers, drafters=(), patience: LinkLimits = PATIENT, keep: StoreOptions = QUICK
) -> AsyncIterator[tuple[list[Cluster], list[FrontDoor]]]:
    async with AsyncExitStack() as stack:
        drafters = list(drafters)
        first = await stack.enter_async_context(cluster(verifiers, drafters, patience, keep))
        second = await stack.enter_async_context(
            orchestrator("o2", first.redis, verifiers, drafters, patience, keep)
        )
        both = [first, second]
        yield both, await stack.enter_async_context(doors(*both))
        await nothing_is_left(both)


async def nothing_is_left(both: list[Cluster]) -> None:
    workers = (*both[0].verifiers, *both[0].drafters)
    await until(lambda: not any(one.inference.active_sessions for one in both))
    alive = [worker for worker in workers if not worker.task.done()]
    await until(lambda: not any(worker.host.progress().sessions for worker in alive))
    assert [one.store.held for one in both] == [0, 0]
    assert [one.inference._admission.tokens for one in both] == [0, 0]


async def test_a_resume_elsewhere_over_a_live_lease_fences_the_first_owner():
    async with two([await unhurried()], [await start_drafter()]) as (_, (one, other)):
        first = await one.under_way(LONG, said=10)
        seen = len(first.tokens)
        second = await other.resume("s", seen).end()
        await first.end()
        stored = await other.stored("s")
    text = plain_text()
    assert (second.status, second.tokens) == (OK, text[seen:])
    assert first.status is ABORTED
    assert first.tokens == text[: len(first.tokens)]
    assert (stored.committed_tokens, stored.status) == (LONG, pb.SESSION_STATUS_FINISHED)


@pytest.mark.parametrize("again", ["resumed", "asked for"])
async def test_a_call_carried_out_late_takes_nothing_from_its_reader(again):
    """As by a server that stood still while its reader went elsewhere."""
    async with two([await unhurried()], [await start_drafter()]) as (_, (one, other)):
        first = await one.under_way(LONG, call="reader/1")
        first.call.cancel()
        third = one.resume("s", 0, call="reader/3")
        await until(lambda: len(third.tokens) > 10)
        if again == "resumed":
            late = await other.resume("s", 0, call="reader/2").end()
        else:
            late = await other.generate("s", LONG, call="reader/2").end()
        await third.end()
    assert (late.status, late.tokens) == (ABORTED, [])
    assert (third.status, third.tokens) == (OK, plain_text())


@pytest.mark.parametrize("call", ["reader/2", "another/1", ""])
@pytest.mark.parametrize("again", ["resumed", "asked for"])
async def test_a_reader_comes_back_to_an_owner_that_does_not_know_that_it_took_the_session_away(
    again, call
):
    """Its call to another server was carried out there and then broke; the first owner is idle.

    The next call may be anybody's.
    """
    slow = StoreOptions(lease_ms=60_000)
    async with two([await unhurried()], patience=SHORT, keep=slow) as (both, (one, other)):
        first = await left_alone(both[0], one)
        second = other.resume("s", 0, call="reader/1")
        await until(lambda: second.tokens)
        second.call.cancel()
        if again == "resumed":
            third = one.resume("s", 0, call=call)
        else:
            third = one.generate("s", LONG, call=call)
        await until(lambda: third.tokens or third.status)
        assert third.status is None
        await first.end()
        assert first.status is ABORTED
        assert await other.abort("s") is OK
        assert await one.abort("s") is OK
        await third.end()
        assert third.reason == pb.FINISH_REASON_ABORT


async def test_a_name_that_cannot_be_read_is_no_name():
    async with two([await unhurried()]) as (_, (one, other)):
        first = await one.under_way(LONG, call="reader/9")
        second = await other.resume("s", 0, call="reader/minus one").end()
        await first.end()
    assert (first.status, second.status) == (ABORTED, OK)
    assert second.tokens == plain_text()


def plain_text(tokens: int = LONG) -> list[int]:
    return plain(PROMPT, tokens)


async def left_alone(owner: Cluster, door: FrontDoor) -> Reading:
    """A session whose verifier is torn away, so that its owner waits for another."""
    reading = await door.under_way(LONG)
    await owner.verifiers[0].kill()
    await until(lambda: owner.inference.live.get("default/s").state.verifier is None)
    return reading


async def test_an_owner_that_waits_for_a_verifier_still_hears_that_it_owns_nothing():
    async with two([await unhurried()], patience=SHORT) as (both, (one, other)):
        first = await left_alone(both[0], one)
        second = other.resume("s", 0)
        await first.end()
        assert first.status is ABORTED
        assert both[1].inference.active_sessions == 1
        assert await one.abort("s") is OK
        await second.end()
        assert second.reason == pb.FINISH_REASON_ABORT


async def test_an_abort_elsewhere_ends_an_owner_that_has_nothing_to_write():
    async with two([await unhurried()], patience=SHORT) as (both, (one, other)):
        first = await left_alone(both[0], one)
        assert await other.abort("s") is OK
        await first.end()
        assert (first.status, first.reason) == (OK, pb.FINISH_REASON_ABORT)


async def test_the_same_request_at_both_is_one_session_and_the_last_to_ask_has_it():
    async with two([await unhurried()]) as (_, (one, other)):
        first = await one.under_way(LONG)
        second = await other.generate("s", LONG).end()
        await first.end()
        assert (second.status, second.tokens) == (OK, plain_text())
        assert first.status is ABORTED
        assert first.tokens == plain_text()[: len(first.tokens)]
        again = await one.generate("s", LONG).end()
        assert (again.status, again.tokens) == (OK, plain_text())


async def test_requests_at_both_at_the_same_moment_make_one_session():
    async with two([await unhurried()]) as (_, (one, other)):
        for name in ("a", "b", "c"):
            ends = [await r.end() for r in (one.generate(name), other.generate(name))]
            assert {end.status for end in ends} <= {OK, ABORTED}
            assert any(end.tokens == plain_text(40) for end in ends)
            assert all(end.tokens == plain_text(40)[: len(end.tokens)] for end in ends)


@pytest.mark.parametrize("where", [0, 1], ids=["where it resumes", "elsewhere"])
async def test_an_abort_during_a_resume_wins_in_every_interleaving(where):
    async with two([await unhurried()]) as (_, both_doors):
        for pause in range(0, 24, 2):
            name = f"s-{pause}"
            first = both_doors[0].generate(name, LONG)
            await until(lambda reading=first: len(reading.tokens) > 3)
            resumed = both_doors[1].resume(name, 1)
            for _ in range(pause):
                await asyncio.sleep(0)
            assert await both_doors[1 - where].abort(name) is OK
            ends = [await first.end(), await resumed.end()]
            assert (await both_doors[0].stored(name)).status == pb.SESSION_STATUS_ABORTED
            assert {end.status for end in ends} <= {
                OK,
                ABORTED,
                grpc.StatusCode.FAILED_PRECONDITION,
            }
            assert all(end.reason == pb.FINISH_REASON_ABORT for end in ends if end.status is OK)


async def test_of_resumes_at_both_the_last_wins_and_both_tell_the_same_text():
    async with two([await unhurried()]) as (_, (one, other)):
        first = await one.under_way(LONG)
        ends = await asyncio.gather(*(at.resume("s", 0).end() for at in (one, other, one, other)))
        await first.end()
        assert {end.status for end in ends} <= {OK, ABORTED}
        assert all(end.tokens == plain_text()[: len(end.tokens)] for end in (*ends, first))
        assert (await one.resume("s", 0).end()).tokens == plain_text()
