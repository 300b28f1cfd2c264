"""Several completions of one prompt: each a session of its own, and its text that of a request."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

import paceline
import pytest
from paceline import Chunk, Client, Complete, SessionStatus, Started

from orchestrator.store import StoreOptions
from services.verifier.options import VerifierOptions
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    Cluster,
    Worker,
    cluster,
    engine,
    orchestrator,
    start_core,
    start_drafter,
    start_verifier,
    verifier_core,
)
from tests.integration.known import known_verifier
from tests.models import tiny_tokenizer
from tests.waiting import until

LONG = " ".join([PROMPT] * 6)
TOKENS = len(tiny_tokenizer().encode(LONG))
WARM = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, "seed": 2**64 - 2}
# By the last two rules a text depends on what was drafted when, unless nothing is.
PLAIN = {"disable_speculative_decoding": True}
WAYS = {
    "greedy": WARM | {"temperature": 0.0},
    "coupled": WARM | {"rejection_sample_method": "coupled"},
    "standard": WARM | {"rejection_sample_method": "standard"} | PLAIN,
    "block": WARM | {"rejection_sample_method": "block"} | PLAIN,
}


async def uncached(name: str) -> Worker:
    """A verifier that keeps no text that ended."""
    loaded, own = engine(), VerifierOptions(prefix_cache_tokens=0)
    return await start_core(verifier_core, loaded, name, loaded.bundle, options=own)


QUICK = StoreOptions(lease_ms=600)


async def one_by_one(running: Cluster, count: int, **options):
    """The texts of single requests with the seeds that completions have."""
    first = options.pop("seed")
    seeds = [(first + index) % 2**64 for index in range(count)]
    runs = [await running.client.generate(PROMPT, seed=seed, **options) for seed in seeds]
    return [run.token_ids for run in runs]


@pytest.mark.parametrize("way", WAYS)
async def test_each_completion_is_the_text_of_a_single_request_with_its_seed(way):
    verifiers, drafters = [await start_verifier()], [await start_drafter(seed=3)]
    async with cluster(verifiers, drafters, PATIENT) as running:
        alone = await one_by_one(running, 4, **WAYS[way])
        several = await running.client.generate(PROMPT, n=4, request_id="r", **WAYS[way])
        assert [one.token_ids for one in several] == alone
        assert [one.session_id for one in several] == ["r.0", "r.1", "r.2", "r.3"]
        assert [one.seed for one in several] == [2**64 - 2, 2**64 - 1, 0, 1]
        assert [one.index for one in several] == [0, 1, 2, 3]
        assert len(set(alone)) == (1 if way == "greedy" else 4)


@pytest.mark.parametrize("method", ["model", "graph", "ngram,model"])
@pytest.mark.parametrize("way", ["greedy", "coupled"])
async def test_a_drafter_reads_the_prompt_once_and_no_text_changes(way, method):
    methods = tuple(method.split(","))
    drafters = [await start_drafter("d1", methods=methods)]
    # Longer, so that the model has time to read beside n-grams.
    options = WAYS[way] | {"method": method, "max_tokens": 60, "include_rounds": True}
    async with cluster([await start_verifier()], drafters, PATIENT) as running:
        alone = [
            (await running.client.generate(LONG, **options | {"seed": seed % 2**64})).token_ids
            for seed in range(WARM["seed"], WARM["seed"] + 4)
        ]
        assert drafters[0].host.progress().copied_tokens == 0
        several = await running.client.generate(LONG, n=4, **options)
        assert [one.token_ids for one in several] == alone
        assert sum(one.speculation.draft_acceptance_rate for one in several)
        copied = drafters[0].host.progress().copied_tokens
        most = 3 * (TOKENS - 1)
        # One that ends before the model is there for it copies nothing.
        assert copied == most or (method == "ngram,model" and copied % (TOKENS - 1) == 0 < copied)


@pytest.mark.parametrize("way", ["kept", "ephemeral", "no prefix cache"])
async def test_the_prompt_of_eight_completions_is_computed_once(way):
    start = uncached if way == "no prefix cache" else start_verifier
    verifiers = [await start("v1"), await start("v2")]
    async with cluster(verifiers, [], PATIENT) as running:
        several = await running.client.generate(LONG, n=8, ephemeral=way == "ephemeral", **WARM)
        assert [one.usage.prompt_tokens for one in several] == [TOKENS] * 8
        assert sorted(one.usage.cached_tokens for one in several) == [0] + [TOKENS - 1] * 7
        kept = sum(worker.host.progress().kv_tokens_spare for worker in verifiers)
        assert bool(kept) == (way == "kept")


@pytest.mark.parametrize("way", ["greedy", "coupled"])
async def test_a_verifier_that_dies_changes_no_text(way):
    options = WAYS[way] | {"max_tokens": 60}
    first, second = await start_verifier("v1"), await start_verifier("v2")
    async with cluster([first, second], [], PATIENT) as running:
        alone = await one_by_one(running, 4, **options)
        texts = defaultdict(list)
        async for event in running.client.generate(PROMPT, n=4, **options):
            if isinstance(event, Chunk):
                texts[event.index] += event.token_ids
                if len(texts[event.index]) >= 10:
                    busy = max((first, second), key=lambda one: one.host.progress().sessions)
                    if not busy.task.done() and not any(w.task.done() for w in (first, second)):
                        await busy.kill()
        assert [tuple(texts[index]) for index in range(4)] == alone
        assert first.task.done() != second.task.done()


async def test_an_orchestrator_that_dies_changes_no_text():
    options = WAYS["coupled"] | {"max_tokens": 60}
    verifiers = [await start_verifier()]
    async with (
        cluster(verifiers, [], PATIENT, QUICK) as one,
        orchestrator("o2", one.redis, verifiers, [], PATIENT, QUICK) as other,
        Client([one.address, other.address]) as client,
    ):
        alone = await one_by_one(one, 4, **options)
        events = []
        async for event in client.generate(PROMPT, n=4, request_id="r", **options):
            events.append(event)
            if len(events) == 12:
                await one.store.close(0)
                await one.server.stop()
        for index in range(4):
            own = [event for event in events if event.index == index]
            assert isinstance(own[0], Started)
            assert isinstance(own[-1], Complete)
            chunks = own[1:-1]
            assert tuple(token for chunk in chunks for token in chunk.token_ids) == alone[index]
        stored = [await client.get_session(f"r.{index}") for index in range(4)]
        assert [(one.index, one.n) for one in stored] == [(index, 4) for index in range(4)]


@asynccontextmanager
async def slow(**options):
    """A verifier that says a known text, a token every few milliseconds."""
    async with cluster([await known_verifier(5.0)], [], PATIENT, **options) as running:
        yield running


ENDLESS = {"temperature": 0.0, "seed": 1, "max_tokens": 20_000, "ignore_eos": True}


async def begun(stream) -> None:
    """Wait until each of three completions has said something."""
    said = set()
    async for event in stream:
        if isinstance(event, Chunk):
            said.add(event.index)
        if said == {0, 1, 2}:
            return


async def statuses(client: Client, name: str) -> list[SessionStatus]:
    return [(await client.get_session(f"{name}.{index}")).status for index in range(3)]


async def test_one_completion_is_aborted_alone_and_the_request_ends_all():
    async with slow() as running:
        client = running.client
        stream = client.generate("ab", n=3, request_id="r", **ENDLESS)
        await begun(stream)
        await client.abort("r.1")
        active, aborted = SessionStatus.ACTIVE, SessionStatus.ABORTED
        assert await statuses(client, "r") == [active, aborted, active]
        await client.abort("r")
        assert await statuses(client, "r") == [aborted] * 3
        ends = [event async for event in stream if isinstance(event, Complete)]
        assert {end.index for end in ends} == {0, 1, 2}
        assert {end.finish_reason for end in ends} == {paceline.FinishReason.ABORT}
        await until(lambda: not running.inference.active_sessions)
        with pytest.raises(paceline.NotFound):
            await client.abort("q")


async def test_all_of_an_ephemeral_request_are_aborted_from_afar_though_the_first_has_ended():
    verifiers = [await known_verifier(5.0)]
    asked = ENDLESS | {"ephemeral": True, "request_id": "r"}
    async with (
        cluster(verifiers, [], PATIENT) as one,
        orchestrator("o2", one.redis, verifiers, [], PATIENT) as other,
    ):
        stream = one.client.generate("ab", n=3, **asked)
        await begun(stream)
        await one.client.abort("r.0")
        ended = await other.client.get_session("r.0")
        assert (ended.status, ended.index, ended.n) == (SessionStatus.ABORTED, 0, 3)
        await other.client.abort("r")
        last = await other.client.get_session("r.2")
        assert (last.status, last.index, last.n) == (SessionStatus.ABORTED, 2, 3)
        await stream.aclose()


async def test_the_same_request_attaches_to_all_and_another_is_refused():
    async with slow() as running:
        client = running.client
        asked = {"request_id": "r", "temperature": 1.0, "max_tokens": 200, "ignore_eos": True}
        first = asyncio.ensure_future(client.generate("ab", n=3, **asked).result())
        await until(lambda: running.inference.active_sessions == 3)
        again = client.generate("ab", n=3, **asked)
        for other in ({"n": 2}, {}, {"n": 3, "max_tokens": 100}):
            with pytest.raises(paceline.AlreadyExists):
                await client.generate("ab", **asked | other)
        texts = [one.token_ids for one in await first]
        assert [one.token_ids for one in await again] == texts
        after = await client.generate("ab", n=3, **asked)
        assert [one.token_ids for one in after] == texts
        alone = await client.resume("r.2", 150)
        assert alone.token_ids == texts[2][150:]


async def test_one_that_cannot_be_attached_to_fails_when_the_others_have_ended():
    async with slow() as running:
        client = running.client
        asked = {"n": 3, "request_id": "r", "max_tokens": 200, "ignore_eos": True, "seed": 7}
        first = client.generate("ab", **asked)
        await begun(first)
        await client.abort("r.1")
        whole = await first
        assert [len(one.token_ids) for one in whole][::2] == [200, 200]
        again = client.generate("ab", **asked)
        with pytest.raises(paceline.FailedPrecondition, match=r"'r.1' was aborted"):
            await again
        ended = {event.index for seen in again._seen for event in seen if type(event) is Complete}
        assert ended == {0, 2}


async def test_whoever_asks_for_the_request_is_told_of_its_sessions():
    async with cluster([await start_verifier()], []) as running:
        client = running.client
        await client.generate(PROMPT, request_id="r", n=3, **WARM)
        told = r"3 completions, each a session of its own, 'r\.0' to 'r\.2'"
        for ask in (
            client.resume("r").result,
            lambda: client.get_session("r"),
            lambda: client.get_session("r", rounds=True),
        ):
            with pytest.raises(paceline.NotFound, match=told):
                await ask()
        assert (await client.get_session("r.2")).committed_tokens == 24


async def test_an_id_that_a_client_took_leaves_none_of_the_others():
    async with slow() as running:
        client = running.client
        await client.generate("ab", request_id="r.1", max_tokens=5)
        with pytest.raises(paceline.AlreadyExists):
            await client.generate("ab", n=3, request_id="r", **ENDLESS)
        assert not running.inference.active_sessions
        assert (await client.get_session("r.0")).status is SessionStatus.ABORTED
