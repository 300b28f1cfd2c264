"""Nobody's text is the beginning of one and the end of another, whatever the store lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
import paceline
import pytest
from paceline import Chunk, Client, GenerationStream

from orchestrator.session.ports import SessionKey
from services.contract.types import FinishReason
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.replicas import follow, lag, take_its_place
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    Cluster,
    cluster,
    orchestrator,
    start_drafter,
    start_verifier,
)
from tests.integration.front_door import FrontDoor, doors
from tests.integration.test_stores_that_fail import (
    QUICK,
    RELAXED,
    left_behind,
    one,
    set_mode,
)
from tests.waiting import until

OK, DATA_LOSS = grpc.StatusCode.OK, grpc.StatusCode.DATA_LOSS
KEPT, HAD, WHOLE = 10, 35, 60
LONG = 400
"""Tokens of a text that is far from its end when a busy machine has made a replica lag."""
KEY = SessionKey("default", "s")
LAWS = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "seed": 7},
}
BOTH = pytest.mark.parametrize("keep", [QUICK, RELAXED], ids=["required", "relaxed"])


@BOTH
@pytest.mark.parametrize("law", LAWS)
async def test_a_reader_ahead_of_the_store_gets_the_same_tokens_again(keep, law):
    async with one(keep) as (running, door):
        whole = await left_behind(running, door, "s", KEPT, **LAWS[law])
        rest = [await door.resume("s", at, had=whole[:at]).end() for at in (HAD, KEPT, 0, WHOLE)]
    assert [(end.status, end.tokens) for end in rest] == [
        (OK, whole[at:]) for at in (HAD, KEPT, 0, WHOLE)
    ]


@BOTH
async def test_tokens_that_come_otherwise_the_second_time_are_a_loss_once_they_are_there(keep):
    """As in bfloat16, where a step of another size may choose another token."""
    async with one(keep) as (running, door):
        whole = await left_behind(running, door, "s", KEPT)
        lost = await door.resume("s", HAD, had=[*whole[:20], whole[20] + 1, *whole[21:HAD]]).end()
        again = await door.resume("s", 0, had=()).end()
    assert (lost.status, lost.tokens) == (DATA_LOSS, [])
    assert (again.status, again.tokens) == (OK, whole)


@BOTH
@pytest.mark.parametrize("rule", ["STANDARD", "BLOCK"])
async def test_a_reader_of_a_text_that_is_lost_gets_the_end_of_no_other_one(keep, rule):
    async with one(keep) as (running, door):
        whole = await left_behind(running, door, "s", KEPT, temperature=1.0)
        await set_mode(running, KEY, rule)
        at_once = await door.resume("s", HAD, had=whole[:HAD]).end()
        untouched = await running.store.get(KEY)
        # Somebody goes on with what there is, until the text has grown beyond the reader.
        meanwhile = door.resume("s", KEPT, had=whole[:KEPT])
        await until(lambda: len(meanwhile.tokens) > HAD - KEPT)
        later = await door.resume("s", HAD, had=whole[:HAD]).end()
        await meanwhile.end()
        ended = await door.resume("s", HAD, had=whole[:HAD]).end()
        longer = await door.resume("s", WHOLE, had=whole).end()
        theirs = await door.resume("s", HAD, had=whole[:KEPT] + meanwhile.tokens[:25]).end()
        unsaid = await door.resume("s", HAD).end()
    assert [(end.status, end.tokens) for end in (at_once, later, ended, longer)] == [
        (DATA_LOSS, [])
    ] * 4
    assert (untouched.term, len(untouched.committed)) == (1, KEPT)
    assert (meanwhile.status, len(meanwhile.tokens)) == (OK, WHOLE - KEPT)
    assert meanwhile.tokens[HAD - KEPT :] == theirs.tokens == unsaid.tokens
    assert whole != whole[:KEPT] + meanwhile.tokens


async def test_a_text_that_ended_before_what_a_reader_has_is_a_loss():
    async with one(QUICK) as (running, door):
        whole = await left_behind(running, door, "s", KEPT)
        await running.store.finish(KEY, 1, KEPT, FinishReason.STOP)
        lost = await door.resume("s", HAD, had=whole[:HAD]).end()
        unsaid = await door.resume("s", HAD).end()
    assert (lost.status, unsaid.status) == (DATA_LOSS, grpc.StatusCode.OUT_OF_RANGE)


async def test_a_hash_of_no_tokens_is_the_empty_one():
    async with one(QUICK) as (_, door):
        await door.generate("s", 5).end()
        wrong = await door.resume("s", 0, had=[1]).end()
    assert wrong.status is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("had", [None, [1] * 61], ids=["unsaid", "said"])
async def test_an_offset_that_the_session_can_never_reach_is_refused_at_once(had):
    async with one(RELAXED) as (running, door):
        await left_behind(running, door, "s", KEPT)
        refused = await door.resume("s", WHOLE + 1, had=had).end()
        assert refused.status is grpc.StatusCode.OUT_OF_RANGE
        assert (await running.store.get(KEY)).term == 1


@dataclass
class Two:
    """Two orchestrators in front of one Redis."""

    first: Cluster
    second: Cluster
    doors: list[FrontDoor]

    def client(self) -> Client:
        return Client([self.first.address, self.second.address])


@asynccontextmanager
async def two() -> AsyncIterator[Two]:
    verifiers, drafters = [await start_verifier()], [await start_drafter()]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(cluster(verifiers, drafters, PATIENT, QUICK))
        second = await stack.enter_async_context(
            orchestrator("o2", first.redis, verifiers, drafters, PATIENT, QUICK)
        )
        yield Two(first, second, await stack.enter_async_context(doors(first, second)))


RULES = {
    **LAWS,
    "standard": {"temperature": 1.0, "seed": 7},
    "block": {"temperature": 1.0, "seed": 7},
}


@pytest.mark.parametrize("rule", RULES)
async def test_a_failover_that_lost_writes_while_the_owner_died(rule):
    """Over gRPC with the Python client, which goes on by itself."""
    asked = {"max_tokens": LONG, "ignore_eos": True, **RULES[rule]}
    if rule != "greedy":
        asked["rejection_sample_method"] = rule
    async with two() as both, both.client() as client:
        undisturbed = (await client.generate(PROMPT, **asked)).token_ids
        with EmbeddedRedis() as replica:
            stream = client.generate(PROMPT, request_id="s", **asked)
            tokens, error = await read_through_a_failover(stream, both, replica)
            stored = await both.second.store.get(KEY)
    if rule in LAWS:
        assert (error, tuple(tokens)) == (None, undisturbed)
    else:
        assert isinstance(error, paceline.DataLoss)
        assert len(stored.committed) < len(tokens) < LONG
        # It was left to whoever has no more than that.
        assert stored.term == 1


async def read_through_a_failover(
    stream: GenerationStream, both: Two, replica: EmbeddedRedis
) -> tuple[list[int], paceline.PacelineError | None]:
    """The replica lags from the start on; once the reader has more, it is all that is left."""
    tokens: list[int] = []
    await follow(replica, both.first.redis)
    kept: int | None = None
    failed = False
    try:
        async for event in stream:
            if not isinstance(event, Chunk):
                continue
            tokens += event.token_ids
            if kept is None and len(tokens) > KEPT:
                await lag(replica, both.first.redis)
                # No more than that: it went on growing while the replica was told.
                kept = len((await both.second.store.get(KEY)).committed)
            if kept is not None and not failed and len(tokens) > kept:
                failed = True
                await fail_over(replica, both.first)
    except paceline.PacelineError as error:
        return tokens, error
    return tokens, None


async def fail_over(replica: EmbeddedRedis, owner: Cluster) -> None:
    """The server and the orchestrator die together: nobody gives back what the replica lacks."""
    assert owner.server is not None
    take_its_place(replica, owner.redis)
    await owner.store.close(0)
    await owner.server.stop()


async def test_an_owner_that_has_not_heard_of_a_later_one_refuses_nobody_s_text():
    async with two() as both:
        (here, there) = both.doors
        reading = await here.under_way(100, said=10)
        stalls(both.first)
        await asyncio.sleep(0.1)
        rest = await there.resume("s", len(reading.tokens), had=reading.tokens).end()
        text = reading.tokens + rest.tokens
        assert (rest.status, len(text)) == (OK, 100)
        assert both.first.inference.live.get("default/s") is not None
        back = await here.resume("s", 90, had=text[:90]).end()
        await reading.end()
    assert (back.status, back.tokens) == (OK, text[90:])
    assert reading.status is grpc.StatusCode.ABORTED


def stalls(running: Cluster) -> None:
    """Its writes get no answer, and it is not told that the session is another's."""
    never = asyncio.get_running_loop().create_future
    running.store.commit = lambda *_: never()  # type: ignore[method-assign]
    running.store._leases.renew = lambda *_: None  # type: ignore[method-assign]
