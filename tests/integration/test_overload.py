"""More than fits is refused with a delay; a reader that is slow stalls itself alone."""

import asyncio
import gc
from collections import Counter

import grpc
import psutil
import pytest
from paceline.v1 import inference_pb2 as pb

import orchestrator.frontdoor.grpc.servicer
import orchestrator.frontdoor.inference
import orchestrator.frontdoor.long_requests
from orchestrator.frontdoor.authentication import anyone
from orchestrator.frontdoor.grpc.call_limits import Door
from orchestrator.steering.config import Limits
from tests.integration.cluster import PATIENT, cluster
from tests.integration.known import (
    known_drafter,
    known_front,
    known_verifier,
    read,
    request,
    stub,
    text,
)
from tests.waiting import until

# A client that takes in little beyond what it was asked for.
NARROW = (("grpc.http2.lookahead_bytes", 16_384), ("grpc.http2.bdp_probe", 0))
LONG_LIMITS = Limits(deadline=600.0)


async def test_two_thousand_sessions_at_once_are_each_served_or_refused_with_a_delay():
    # Ten steps of a tenth of a second: fifty at once are soon too many.
    workers = [await known_verifier(100.0)], []
    async with cluster(*workers, PATIENT, max_sessions=50, limits=LONG_LIMITS) as running:
        resident = []
        for crowd in range(2):
            seeds = range(2000 * crowd, 2000 * (crowd + 1))
            async with stub(running.address) as front:
                ends = await asyncio.gather(*(read(front.Generate(request(n, 10))) for n in seeds))
            served = {n: end for n, end in zip(seeds, ends, strict=True) if end.complete}
            turned_away = [end for end in ends if not end.complete]
            assert all(end.tokens == text(n, 10) for n, end in served.items())
            assert {end.code for end in turned_away} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert all(end.retry_after and not end.tokens for end in turned_away)
            assert len(served) >= 50
            await until(lambda: not running.door.streams.total)
            counts = running.inference.active_sessions, running.inference.sessions_of("default")
            assert counts == (0, 0)
            await until(lambda: not any(w.host.progress().sessions for w in running.verifiers))
            gc.collect()
            resident.append(psutil.Process().memory_info().rss)
        assert len(asyncio.all_tasks()) < 60
    # The first crowd makes the arenas, the second finds them.
    assert resident[1] < 1.1 * resident[0]


async def test_who_comes_back_as_told_is_served_in_the_end():
    async with known_front(max_sessions=20) as (_, front):

        async def insist(seed: int) -> list[int]:
            for _ in range(200):
                end = await read(front.Generate(request(seed, 20)))
                if end.complete:
                    return end.tokens
                await asyncio.sleep(end.retry_after)
            raise AssertionError("it was never served")

        texts = await asyncio.gather(*(insist(seed) for seed in range(100)))
    assert texts == [text(seed, 20) for seed in range(100)]


async def test_more_streams_than_may_be_open_are_refused_and_other_calls_are_answered():
    door = Door(anyone, 3)
    async with known_front(1.0, door=door) as (running, front):
        held = [front.Generate(request(1, 50_000, "held"))]
        await held[0].read()
        held += [front.Resume(pb.ResumeRequest(session_id="held")) for _ in range(2)]
        for call in held[1:]:
            await call.read()
        more = await read(front.Resume(pb.ResumeRequest(session_id="held")))
        await front.Abort(pb.AbortRequest(session_id="held"), timeout=60)
        ends = [await read(call) for call in held]
        await until(lambda: not running.door.streams.total)
        after = await read(front.Generate(request(2, 5)))
    assert (more.code, more.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert more.retry_after > 0
    assert {end.complete.finish_reason for end in ends} == {pb.FINISH_REASON_ABORT}
    assert after.tokens == text(2, 5)


async def test_resumes_are_admitted_too_and_what_is_refused_stays_resumable():
    limits = Limits(detach_grace=0.0)
    workers = [await known_verifier(2.0)], []
    async with cluster(*workers, PATIENT, max_sessions=2, limits=limits) as running:
        taken: dict[str, list[int]] = {}
        async with stub(running.address) as front:
            for seed in range(4):
                taken[f"s{seed}"] = await _leave_after_some(front, seed)
                await until(lambda: not running.inference.active_sessions)
            again = [_resume(front, name, tokens) for name, tokens in taken.items()]
            ends = dict(zip(taken, await asyncio.gather(*again), strict=True))
            counts = Counter(end.code for end in ends.values())
            assert counts == {None: 2, grpc.StatusCode.RESOURCE_EXHAUSTED: 2}
            for name, end in ends.items():
                if end.complete is None:
                    assert end.retry_after > 0
                    told = await front.GetSession(pb.GetSessionRequest(session_id=name))
                    assert told.status == pb.SESSION_STATUS_PAUSED
                    ends[name] = await _resume(front, name, taken[name])
    for seed, (name, end) in enumerate(ends.items()):
        assert taken[name] + end.tokens == text(seed, 300)


async def _leave_after_some(front, seed: int) -> list[int]:
    call, tokens = front.Generate(request(seed, 300, f"s{seed}")), []
    async for event in call:
        tokens += event.chunk.token_ids
        if len(tokens) > 5:
            break
    call.cancel()
    return tokens


async def _resume(front, name: str, tokens: list[int]):
    return await read(front.Resume(pb.ResumeRequest(session_id=name, offset=len(tokens))))


@pytest.fixture
def written(monkeypatch):
    """The size of every message that was handed to gRPC."""
    sizes: list[int] = []
    respond = orchestrator.frontdoor.grpc.servicer.replies.respond

    def counting(kind, event):
        message = respond(kind, event)
        sizes.append(message.ByteSize())
        return message

    monkeypatch.setattr(orchestrator.frontdoor.grpc.servicer.replies, "respond", counting)
    return sizes


TOKENS = 30_000
WIDE = {"num_speculative_tokens": 64}


async def test_a_reader_that_stands_still_stalls_itself_alone_and_little_waits_for_it(written):
    workers = [await known_verifier()], [await known_drafter(32)]
    async with (
        cluster(*workers, PATIENT, limits=LONG_LIMITS, **WIDE) as running,
        stub(running.address, NARROW) as slow,
        stub(running.address) as front,
    ):
        asked = request(5, TOKENS, "slow")
        asked.include_rounds = True
        call = slow.Generate(asked)
        await call.read()
        await until(lambda: not running.inference.active_sessions, 200)
        waiting = sum(written)
        others = await asyncio.gather(*(read(front.Generate(request(n, 50))) for n in range(20)))
        assert [end.tokens for end in others] == [text(n, 50) for n in range(20)]
        await until(lambda: running.door.streams.total == 1)
        before = sum(written)
        end = await read(call)
        rest = sum(written) - before
        await until(lambda: not running.door.streams.total)
    assert end.tokens == text(5, TOKENS)
    # The windows of one stream, however long the text is.
    assert waiting < 150_000 < rest


async def test_a_stream_that_nobody_reads_ends_at_last_and_can_be_resumed():
    workers = [await known_verifier()], [await known_drafter(32)]
    async with (
        cluster(*workers, PATIENT, read_patience=1.0, limits=LONG_LIMITS, **WIDE) as running,
        stub(running.address, NARROW) as slow,
    ):
        asked = request(6, TOKENS, "stalled")
        asked.include_rounds = True
        call = slow.Generate(asked)
        await call.read()
        await until(lambda: not running.inference.active_sessions, 200)
        await asyncio.sleep(3)
        first = await read(call)
        assert (first.code, first.reason) == (grpc.StatusCode.UNAVAILABLE, "STREAM_STALLED")
        assert len(first.tokens) < TOKENS
        said = list(first.tokens)
        # A busy machine may hold this reader up, too, for longer than the orchestrator's patience.
        for _ in range(20):
            rest = await _resume(slow, "stalled", said)
            said += rest.tokens
            if rest.complete:
                break
        await until(lambda: not running.door.streams.total)
    assert said == text(6, TOKENS)
