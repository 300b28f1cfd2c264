"""The published client between two calls of one generation: how long it waits, and for what."""

import asyncio

import grpc
import paceline
import pytest
from paceline import _patience

from tests.services.breaking_inference import Break, assert_whole, connected, status
from tests.waiting import until

Code = grpc.StatusCode
pytestmark = pytest.mark.usefixtures("short_waits")


async def test_a_server_that_drains_holds_up_only_those_who_know_no_other(cluster, waits):
    draining = status(Code.UNAVAILABLE, "NO_WORKER", retry_after=30.0)
    cluster.plan.append(Break(2, draining))
    async with connected(cluster, ("first", "second")) as (client, *_):
        await client.generate("hi")
    assert sum(waits) < 1
    cluster.plan.append(Break(2, draining))
    async with connected(cluster) as (client, _):
        await client.generate("hi")
    assert 30 <= waits[-1] <= 1.25 * 30


async def test_waits_double_up_to_a_limit_until_a_token_comes(cluster, waits, monkeypatch):
    monkeypatch.setattr(_patience, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(_patience, "LONGEST_WAIT", 2.0)
    cluster.plan += [*(Break(1) for _ in range(8)), Break(2), Break(0)]
    async with connected(cluster) as (client, _):
        await client.generate("hi")
    ceilings = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 0.1, 0.2]
    assert len(waits) == len(ceilings)
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, ceilings, strict=True))


async def test_patience_ends_with_the_last_error(cluster, waits):
    cluster.plan += [Break(2), *(Break(1, status(Code.UNAVAILABLE, "NO_WORKER", 1.0)),) * 99]
    async with connected(cluster, patience=5.0) as (client, service):
        with pytest.raises(paceline.Unavailable, match="said so") as caught:
            await client.generate("hi")
    assert caught.value.reason == "NO_WORKER"
    assert sum(waits) <= 5
    assert 4 <= len(service.requests) <= 7
    assert cluster.aborted == []


async def test_a_server_that_asks_back_beyond_the_patience_is_not_waited_for(cluster, waits):
    cluster.plan.append(Break(2, status(Code.UNAVAILABLE, "NO_WORKER", retry_after=61.0)))
    async with connected(cluster) as (client, _):
        with pytest.raises(paceline.Unavailable):
            await client.generate("hi")
    assert waits == []


async def test_progress_restores_the_patience(cluster, waits, monkeypatch):
    monkeypatch.setattr(_patience, "FIRST_WAIT", 1.0)
    monkeypatch.setattr(_patience, "LONGEST_WAIT", 1.0)
    cluster.sizes = (1,) * 40
    cluster.plan += [Break(2)] * 40
    async with connected(cluster, patience=2.0) as (client, _):
        events = [event async for event in client.generate("hi")]
    assert_whole(events, cluster)
    assert sum(waits) >= 20


async def test_a_timeout_is_that_of_all_attempts_together(cluster, waits):
    cluster.plan += [Break(2, status(Code.UNAVAILABLE, "NO_WORKER", retry_after=20.0))] * 9
    async with connected(cluster) as (client, service):
        with pytest.raises(paceline.DeadlineExceeded):
            await client.generate("hi", timeout=50.0)
    assert sum(waits) == pytest.approx(50)
    # The header of a deadline rounds up, to a tenth of a second from here.
    assert 40 < service.remaining[0] <= 50.2
    assert 20 < service.remaining[1] <= 30.2
    assert cluster.aborted == []


async def test_a_caller_cancelled_between_attempts_aborts_the_session(cluster):
    cluster.plan.append(Break(2, status(Code.UNAVAILABLE, "NO_WORKER", retry_after=50.0)))
    async with connected(cluster) as (client, _):
        waiting = asyncio.Event()
        pause = client._servers.pause

        async def noticed(seconds):
            waiting.set()
            await pause(seconds)

        client._servers.pause = noticed
        task = asyncio.ensure_future(client.generate("hi", request_id="mine").result())
        async with asyncio.timeout(60):
            await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(60):
            await cluster.was_aborted.wait()
    assert cluster.aborted == ["mine"]


async def test_closing_between_attempts_aborts_the_session_and_ends_the_wait(cluster):
    cluster.plan.append(Break(2, status(Code.UNAVAILABLE, "NO_WORKER", retry_after=50.0)))
    async with connected(cluster) as (client, service):
        task = asyncio.ensure_future(client.generate("hi", request_id="mine").result())
        await until(lambda: service.requests)
        await client.close()
        async with asyncio.timeout(60):
            ends = await asyncio.gather(task, return_exceptions=True)
    # Closed while the first call was still open, or in the wait after it.
    assert isinstance(ends[0], RuntimeError | asyncio.CancelledError)
    assert cluster.aborted == ["mine"]
