"""What is kept of a request: what it was resolved to, and nothing else that came with it."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.steering.driver import Driver
from services.contract.errors import StoreError
from tests.integration.front_door import leave_in_the_store
from tests.integration.known import Ended, known_front, read, request, text
from tests.waiting import until

MIB = 1 << 20
BUSY = grpc.StatusCode.RESOURCE_EXHAUSTED
UNKNOWN = b"\xfa\x3f"
"""The tag of field 1023, which holds bytes."""


def padded(asked: pb.GenerateRequest, size: int) -> pb.GenerateRequest:
    """The same with so many bytes in a field that nobody knows."""
    length, count = b"", size
    while count > 127:
        length, count = length + bytes([count & 127 | 128]), count >> 7
    made = asked.SerializeToString() + UNKNOWN + length + bytes([count]) + b"x" * size
    return pb.GenerateRequest.FromString(made)


async def bytes_of(running) -> int:
    """What the store's keys take."""
    client = running.store._client
    return sum([await client.memory_usage(key, samples=0) or 0 for key in await client.keys("*")])


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def messages(size: int) -> int:
    """Requests of at least so many bytes that somebody holds."""
    made = [one for one in gc.get_objects() if type(one) is pb.GenerateRequest]
    return sum(one.ByteSize() >= size for one in made)


@pytest.mark.parametrize("n", [1, 16])
async def test_of_a_large_message_nothing_is_kept_that_nobody_knows(n):
    asked = request(1, 5, "r")
    asked.n = n
    async with known_front() as (running, front):
        call = front.Generate(padded(asked, 7 * MIB))
        async for _ in call:
            pass
        assert await bytes_of(running) < 300_000


@pytest.mark.parametrize("ended", ["well", "by an abort", "as another request", "as invalid"])
@pytest.mark.parametrize("n", [1, 16])
async def test_no_cycle_holds_a_message_nor_a_session_that_ended(monkeypatch, n, ended):
    drivers, begin = weakref.WeakSet(), Driver.__init__

    def noted(self, *given, **named):
        drivers.add(self)
        begin(self, *given, **named)

    monkeypatch.setattr(Driver, "__init__", noted)
    asked = request(1, 50_000 if ended == "by an abort" else 5, "r")
    asked.n = n
    async with known_front() as (running, front):
        if ended == "as another request":
            await read_all(front, request(1, 7, "r" if n == 1 else "r.15"))
        asked.priority = 10**6 if ended == "as invalid" else 0
        gc.collect()
        begun = len(drivers)
        with uncollected():
            said = await read_all(front, padded(asked, MIB), aborted=ended == "by an abort")
            assert (said.code is None) == (ended in ("well", "by an abort"))
            assert not begun
            await until(lambda: not messages(MIB), 20.0)
            await until(lambda: not running.inference.active_sessions and not drivers, 20.0)


async def read_all(front, asked: pb.GenerateRequest, *, aborted: bool = False) -> Ended:
    """How a call ends, that is aborted as soon as it says something, or not."""
    try:
        async for _ in front.Generate(asked):
            if aborted:
                aborted = False
                await front.Abort(pb.AbortRequest(session_id=asked.request_id))
    except grpc.aio.AioRpcError as error:
        return Ended.of(error)
    return Ended()


async def test_a_record_that_still_has_its_request_goes_on():
    async with known_front() as (running, front):
        key = await leave_in_the_store(running, "s", text(1, 3), seed=1)
        client = running.store._client
        [meta] = [name for name in await client.keys("*") if name.endswith(b":meta")]
        await client.hset(meta, "request", b"what was asked for, by an earlier version")
        ended = await read(front.Resume(pb.ResumeRequest(session_id=key.session_id)))
        assert ended.tokens == text(1, 40)


def counted(running) -> int:
    return running.inference._records.size


@pytest.mark.parametrize("n", [1, 4])
async def test_what_a_session_takes_in_the_store_counts_from_before_it_begins_to_its_expiry(n):
    asked = request(1, 40, "r", prompt="ab" * 500)
    asked.n = n
    async with known_front() as (running, front):
        at_most = [counted(running) async for _ in front.Generate(asked)]
        taken = await bytes_of(running)
        await until(lambda: not running.inference.active_sessions)
        assert taken <= counted(running) <= at_most[0]
        assert counted(running) < 4 * taken


async def test_a_request_that_would_pass_the_limit_is_refused_before_anything_is_stored():
    async with known_front() as (running, front):
        running.inference._records._most = 200_000
        asked = request(1, 40, "r")
        asked.n = 8
        assert (await read_all(front, asked)).code is None
        asked.request_id = "s"
        refused = await read_all(front, asked)
        assert (refused.code, refused.reason) == (BUSY, "OVERLOADED")
        assert "bytes in the session store" in refused.message
        assert refused.retry_after
        assert not await running.store._client.keys("*s.0*")
        asked.n = 16
        wrong = await read_all(front, asked)
        assert (wrong.code, wrong.message[:3]) == (grpc.StatusCode.INVALID_ARGUMENT, "n: ")


@pytest.mark.parametrize("n", [1, 4])
async def test_what_may_be_stored_counts_though_nobody_has_the_answer(monkeypatch, n):
    async with known_front() as (running, front):

        async def lost(*_):
            raise StoreError("no answer")

        monkeypatch.setattr(running.store, "create", lost)
        asked = request(1, 40, "r")
        asked.n = n
        assert (await read_all(front, asked)).reason == "STORE_ERROR"
        assert counted(running) >= 8_000


async def test_what_is_ended_for_the_sake_of_another_counts_until_the_store_forgets_it():
    async with known_front() as (running, front):
        await read_all(front, request(1, 7, "r.3"))
        alone = counted(running)
        asked = request(1, 40, "r")
        asked.n = 4
        assert (await read_all(front, asked)).reason == "ALREADY_EXISTS"
        assert counted(running) > 3 * alone


async def test_completions_that_leave_the_store_and_this_process_meanwhile_fail_alone(monkeypatch):
    """Of those that were at work when places were taken there is none to begin again."""
    async with known_front(1.0) as (running, front):
        asked = request(1, 50_000, "r")
        asked.n = 4
        first = front.Generate(asked)
        await first.read()
        require, inference = running.inference._forms.require, running.inference
        await running.client.abort("r.0")
        await running.store._client.flushall()
        await until(lambda: inference.live.get("default/r.0") is None)

        async def all_gone(*given):
            await require(*given)
            for index in range(1, 4):
                inference.live.get(f"default/r.{index}").fail(StoreError("gone"))
            await running.store._client.flushall()

        monkeypatch.setattr(inference._forms, "require", all_gone)
        ended = await read_all(front, asked, aborted=True)
        assert ended.reason != "PACELINE_ERROR"
        first.cancel()
