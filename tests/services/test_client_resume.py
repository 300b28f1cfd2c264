"""The published client goes on by itself: what breaks a stream is a pause to its caller."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline import EMPTY_HASH, Chunk, Client, PromptLogprobs, TokenLogprobs, extend_hash
from paceline._progress import Progress
from paceline.v1 import inference_pb2 as pb

from testkit.chaos.proxy import Network
from tests.services.breaking_inference import (
    BREAKS,
    HANG,
    SEED,
    Break,
    BreakingService,
    Cluster,
    assert_whole,
    connected,
    serving,
    status,
)
from tests.tries import tries

Code = grpc.StatusCode
MESSAGES = 5  # Started, three chunks, Complete
pytestmark = pytest.mark.usefixtures("short_waits")


def hash_of(tokens):
    return extend_hash(EMPTY_HASH, tokens)


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("after", range(MESSAGES))
async def test_a_stream_that_breaks_goes_on_where_it_was(cluster, after, how):
    cluster.plan.append(Break(after, BREAKS[how]))
    async with connected(cluster) as (client, service):
        events = [event async for event in client.generate("hi", request_id="mine")]
    assert_whole(events, cluster)
    first, second = service.requests
    if after:
        offset = sum(cluster.sizes[: after - 1])
        assert second == pb.ResumeRequest(
            session_id="mine", offset=offset, prefix_hash=hash_of(range(offset))
        )
    else:
        assert second == first
    assert cluster.aborted == []


async def test_what_comes_after_the_end_breaks_nothing(cluster):
    cluster.plan.append(Break(MESSAGES))
    async with connected(cluster) as (client, service):
        assert (await client.generate("hi")).text == cluster.text
    assert len(service.requests) == 1


async def test_the_awaited_generation_is_whole_after_breaks(cluster):
    cluster.plan += [Break(0), Break(2), Break(1), Break(2)]
    async with connected(cluster) as (client, service):
        generation = await client.generate("hi", request_id="mine")
    assert generation.token_ids == tuple(range(cluster.count))
    assert (generation.text, generation.seed) == (cluster.text, SEED)
    assert len(service.requests) == 5


async def test_a_stream_by_resume_resumes_itself(cluster):
    cluster.sessions.add("s")
    cluster.plan += [Break(0), Break(2)]
    async with connected(cluster) as (client, service):
        generation = await client.resume("s", 1)
    assert generation.token_ids == tuple(range(1, cluster.count))
    assert [request.offset for request in service.requests] == [1, 1, 2]
    # What it has from before it did not tell.
    assert not any(request.HasField("prefix_hash") for request in service.requests)


async def test_a_stream_by_resume_goes_on_from_the_hash_that_it_was_given(cluster):
    cluster.sessions.add("s")
    cluster.plan += [Break(0), Break(2)]
    async with connected(cluster) as (client, service):
        await client.resume("s", 1, prefix_hash=hash_of([0]))
        await client.resume("s")
    hashes = [request.prefix_hash for request in service.requests]
    assert hashes == [hash_of(range(count)) for count in (1, 1, 2, 0)]


async def test_when_a_server_dies_the_next_one_goes_on_and_stays_in_use(cluster):
    cluster.plan.append(Break(2, HANG))
    async with connected(cluster, ("first", "second")) as (client, first, _):
        events = []
        async for event in client.generate("hi"):
            events.append(event)
            if isinstance(event, Chunk) and not event.offset:
                await first.server.stop(None)
        await client.generate("again")
        assert (await client.model_info()).model == "second"
    assert_whole(events, cluster)
    assert [name for name, _ in cluster.asked] == ["first", "second", "second", "second"]


async def test_a_server_that_comes_back_at_its_address_is_used_again(cluster):
    cluster.plan.append(Break(2, HANG))
    service = BreakingService(cluster)
    async with AsyncExitStack() as stack:
        old, port = await stack.enter_async_context(serving(service))
        client = await stack.enter_async_context(Client(f"127.0.0.1:{port}"))
        events = []
        async for event in client.generate("hi"):
            events.append(event)
            if isinstance(event, Chunk) and not event.offset:
                await old.stop(None)
                await stack.enter_async_context(serving(service, port=port))
    assert_whole(events, cluster)


ANSWERS = (
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "ABORTED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNIMPLEMENTED",
)


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_to_a_resume_is_raised(cluster, name):
    cluster.plan += [Break(2), Break(0, status(Code[name], "WHY"))]
    async with connected(cluster) as (client, service):
        with pytest.raises(paceline.PacelineError) as caught:
            await client.generate("hi")
    assert caught.value.code is Code[name]
    assert len(service.requests) == 2


async def test_a_session_lost_before_its_first_token_is_made_again_with_its_seed(cluster):
    cluster.plan.append(Break(1, lost=True))
    async with connected(cluster) as (client, service):
        events = [event async for event in client.generate("hi", request_id="mine", top_k=3)]
    assert_whole(events, cluster)
    first, resume, again = service.requests
    assert isinstance(resume, pb.ResumeRequest)
    first.sampling.seed = SEED
    assert again == first


RAISED = {
    "a break without resume": ([Break(2)], {"resume": False}, paceline.Unavailable, 1),
    "a session lost after a token": ([Break(2, lost=True)], {}, paceline.NotFound, 2),
    "a takeover": ([Break(0), Break(2, status(Code.ABORTED, "FENCED"))], {}, paceline.Aborted, 2),
}


@pytest.mark.parametrize(("plan", "options", "error", "calls"), RAISED.values(), ids=RAISED)
async def test_a_generation_ends_with(cluster, plan, options, error, calls):
    cluster.plan += plan
    async with connected(cluster, **options) as (client, service):
        with pytest.raises(error):
            await client.generate("hi")
    assert len(service.requests) == calls


async def test_every_call_says_whose_it_is_and_its_number(cluster):
    cluster.plan += [Break(0), Break(2)]
    async with connected(cluster) as (client, service):
        await client.generate("hi")
        await client.generate("hi")
    calls = [dict(metadata)["paceline-call"].split("/") for metadata in service.metadata]
    readers, numbers = zip(*calls, strict=True)
    assert numbers == ("1", "2", "3", "1")
    assert len(set(readers[:3])) == 1
    assert readers[3] != readers[0]


async def test_a_first_call_to_a_full_server_is_refused_and_a_later_one_waits(cluster):
    full = status(Code.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after=0.001)
    async with connected(cluster) as (client, service):
        cluster.plan.append(Break(0, full))
        with pytest.raises(paceline.ResourceExhausted):
            await client.generate("hi")
        assert len(service.requests) == 1
        cluster.plan += [Break(0), Break(0, full), Break(2), Break(0, full)]
        assert (await client.generate("hi")).text == cluster.text


WRONG = {
    "gap": [pb.Chunk(offset=1, token_ids=[1])],
    "short": [pb.Chunk(offset=0, token_ids=[0, 1])],
    "mute overlap": [
        pb.Chunk(offset=0, token_ids=[0, 1], text="ab"),
        pb.Chunk(offset=1, token_ids=[1, 2], text="bc"),
    ],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_a_server_that_leaves_tokens_out_is_at_fault(cluster, wrong):
    async with connected(cluster) as (client, service):
        service.chunks = lambda offset: wrong
        with pytest.raises(paceline.Internal, match="the server is at fault"):
            await client.generate("hi")
    assert len(service.requests) == 1


def told(begin, end):
    ids = range(begin, end)
    pieces = [chr(ord("a") + index) for index in ids]
    return pb.Chunk(
        offset=begin,
        token_ids=ids,
        text="".join(pieces),
        pieces=pieces,
        logprobs=[pb.TokenLogprobs(token_id=index) for index in ids],
        origins=[1 + index % 3 for index in ids],
    )


async def test_tokens_that_come_twice_are_cut_with_all_that_is_told_of_them(cluster):
    async with connected(cluster) as (client, service):
        service.chunks = lambda offset: [told(0, 3), told(1, 3), told(2, 6)]
        events = [event async for event in client.generate("hi")]
        whole = [told(0, 3), told(3, 6)]
        service.chunks = lambda offset: whole
        expected = [event async for event in client.generate("hi")]
    assert events == expected
    assert_whole(events, cluster)


async def test_a_server_that_stands_still_is_left_for_another(cluster, monkeypatch):
    monkeypatch.setattr("paceline._channel.LEAST_SILENCE", 0.5)
    cluster.plan.append(Break(2, HANG))
    still, other = BreakingService(cluster, "still"), BreakingService(cluster, "other")
    async with serving(still) as (_, hidden), serving(other) as (_, port):
        with Network() as network:
            proxy = network.proxy(lambda: f"127.0.0.1:{hidden}")
            addresses = [proxy.address, f"127.0.0.1:{port}"]
            async with Client(addresses, silence=1.0) as client:
                events = []
                async for event in client.generate("hi"):
                    events.append(event)
                    if isinstance(event, Chunk):
                        proxy.half_open()
            # One that stands still when it is first called, too.
            async with Client(addresses, silence=1.0) as client:
                assert (await client.generate("hi")).text == cluster.text
    assert_whole(events, cluster)
    assert [name for name, _ in cluster.asked] == ["still", "other", "other"]


plans = st.lists(
    st.builds(Break, st.integers(0, 7), st.sampled_from(list(BREAKS.values())), st.just(False)),
    max_size=8,
)
sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple)


@tries(30)
@given(sizes, plans, st.sampled_from([("only",), ("first", "second", "third")]))
def test_whatever_breaks_the_tokens_are_the_whole_text_once(sizes, plan, names):
    async def scenario():
        cluster = Cluster(sizes)
        cluster.plan += plan
        async with connected(cluster, names) as (client, *_):
            events = [event async for event in client.generate("hi")]
        assert_whole(events, cluster)
        assert cluster.aborted == []

    asyncio.run(scenario())


def test_parts_of_a_prompt_that_come_again_are_told_once():
    progress = Progress(0, EMPTY_HASH)
    rows = tuple(TokenLogprobs(token, -0.5) for token in range(6))
    assert progress.take(PromptLogprobs(1, rows[:4])) == PromptLogprobs(1, rows[:4])
    assert progress.take(PromptLogprobs(1, rows[:2])) is None
    assert progress.take(PromptLogprobs(3, rows[2:])) == PromptLogprobs(5, rows[4:])
