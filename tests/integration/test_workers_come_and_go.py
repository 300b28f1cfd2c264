"""Workers die, drain, come late, do not fit: the text does not change, links are made again."""

import asyncio
import time

import pytest
from paceline import Chunk, Client, Unavailable

from orchestrator.steering.config import Limits
from services.cluster import local
from services.cluster.supervisor import ProcessSpec
from services.contract.errors import StartError
from services.contract.types import Role
from services.contract.worker_messages import StartVerify
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from tests.integration.cluster import (
    ARCHITECTURES,
    PATIENT,
    PROMPT,
    cluster,
    engine,
    plain,
    start_core,
    start_drafter,
    start_verifier,
    target,
    verifier_core,
)
from tests.integration.known import known_verifier, read, request, stub
from tests.models import tiny_tokenizer
from tests.waiting import until

TOKENS = 120
# A drafter is looked for at a tick, of which a shorter text may see none.
LONG = 360


async def tokens_with(running, disturb, after: int = 5, tokens: int = TOKENS) -> list[int]:
    """A greedy generation that is disturbed once `after` chunks have come."""
    got: list[int] = []
    chunks = 0
    stream = running.client.generate(PROMPT, temperature=0.0, max_tokens=tokens, ignore_eos=True)
    async for event in stream:
        if isinstance(event, Chunk):
            got += event.token_ids
            chunks += 1
            if chunks == after:
                await disturb()
    return got


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_a_drafter_killed_in_the_middle_changes_nothing_but_pace(arch):
    drafter = await start_drafter(arch=arch, seed=3)
    async with cluster([await start_verifier(arch=arch)], [drafter]) as running:
        assert await tokens_with(running, drafter.kill, tokens=60) == plain(PROMPT, 60, arch)


@pytest.mark.parametrize("role", list(Role))
async def test_a_draining_worker_hands_its_sessions_over_and_exits_in_time(role):
    verifiers = [await start_verifier("v1"), await start_verifier("v2")]
    drafters = [await start_drafter("d1", seed=3), await start_drafter("d2", seed=3)]
    leaving = (verifiers if role is Role.VERIFIER else drafters)[0]

    async def drain():
        leaving.stop.set()

    async with cluster(verifiers, drafters) as running:
        assert await tokens_with(running, drain) == plain(PROMPT, TOKENS)
        assert await asyncio.wait_for(leaving.task, 60) == 0


async def test_without_a_verifier_the_session_ends_unavailable_and_can_be_resumed():
    verifier = await start_verifier("v1")
    async with (
        cluster([verifier], [], limits=Limits(verifier_wait=0.3)) as running,
        Client(running.address, resume=False) as client,
    ):
        tokens: list[int] = []
        stream = client.generate(
            PROMPT, temperature=0.0, max_tokens=TOKENS, ignore_eos=True, request_id="again"
        )

        async def read_on_while_the_only_verifier_is_killed():
            async for event in stream:
                if isinstance(event, Chunk):
                    tokens.extend(event.token_ids)
                    if verifier in running.verifiers:
                        running.verifiers.remove(verifier)
                        await verifier.kill()

        with pytest.raises(Unavailable, match="no verifier"):
            await read_on_while_the_only_verifier_is_killed()
        fresh = await start_verifier("v2")
        running.verifiers.append(fresh)
        running.pool.set_addresses(Role.VERIFIER, [fresh.address])
        rest = await running.client.resume("again", len(tokens))
        assert tokens + list(rest.token_ids) == plain(PROMPT, TOKENS)


async def test_a_drafter_that_comes_later_is_used_by_new_sessions():
    async with cluster([await start_verifier()], []) as running:
        options = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
        before = await running.client.generate(PROMPT, **options)
        late = await start_drafter("late")
        running.drafters.append(late)
        running.pool.set_addresses(Role.DRAFTER, [late.address])
        await running.pool.settle(60)
        after = await running.client.generate(PROMPT, **options)
    assert before.speculation.num_draft_tokens == 0
    assert after.speculation.num_draft_tokens > 0
    assert before.token_ids == after.token_ids


async def test_a_full_drafter_means_no_drafter(caplog):
    methods = {"model": ModelDrafter(engine(kv_capacity_tokens=8))}
    drafter = await start_core(HypothesisCore, methods, "full")
    async with cluster([await start_verifier()], [drafter]) as running:
        run = await running.client.generate(PROMPT, temperature=0.0, max_tokens=30, ignore_eos=True)
    assert list(run.token_ids) == plain(PROMPT, 30)
    assert run.speculation.num_draft_tokens == 0


async def test_the_sooner_of_two_waiting_sessions_gets_the_verifier_first():
    """Room for one session at a time; those that wait came in the other order."""
    small = engine(kv_capacity_tokens=280)
    forward = small.forward
    small.forward = lambda segments: time.sleep(0.02) or forward(segments)
    worker = await start_core(verifier_core, small, "v1", small.bundle)
    ask = {"temperature": 0.0, "max_tokens": 250, "ignore_eos": True}
    order: list[str] = []
    async with cluster([worker], [], PATIENT, max_tokens_in_flight=5000) as running:
        sent, opened = running.pool.send, []

        def send(worker, session, command):
            opened.append(command)
            sent(worker, session, command)

        running.pool.send = send

        async def begin(name: str, priority: int) -> None:
            async for event in running.client.generate(
                PROMPT, request_id=name, priority=priority, **ask
            ):
                if isinstance(event, Chunk):
                    order.append(name)
                    return

        first = aiter(running.client.generate(PROMPT, request_id="first", **ask))
        while not isinstance(await anext(first), Chunk):
            pass
        waiting = []
        for name, priority in (("low", 50), ("high", -50)):
            waiting.append(asyncio.create_task(begin(name, priority)))
            await until(lambda: running.inference.live.waiting == len(waiting))
        await running.client.abort("first")
        await asyncio.gather(*waiting)
    assert order == ["high", "low"]
    assert {one.priority for one in opened if isinstance(one, StartVerify)} == {0, -50, 50}


async def test_a_worker_that_does_not_answer_is_reported_while_the_rest_serves(caplog):
    async with cluster([await start_verifier()], []) as running:
        running.pool.set_addresses(Role.DRAFTER, ["127.0.0.1:1"])
        await running.pool.settle(60)
        run = await running.client.generate(PROMPT, temperature=0.0, max_tokens=10, ignore_eos=True)
        info = await running.client.server_info()
    assert list(run.token_ids) == plain(PROMPT, 10)
    assert [w.connected for w in info.workers if w.role == "drafter"] == [False]
    assert "drafter at 127.0.0.1:1" in caplog.text


def of_another_tokenizer() -> NativeEngine:
    """The target's weights, with a vocabulary of one token more."""
    tokenizer = type(tiny_tokenizer())(tokenizer_object=tiny_tokenizer().backend_tokenizer)
    tokenizer.add_tokens(["<strange>"])
    tokenizer.eos_token = "<|im_end|>"
    return NativeEngine.from_model(target(), tokenizer, ModelSpec("stranger"))


async def test_a_drafter_with_another_tokenizer_is_refused_with_both_fingerprints(caplog):
    stranger = of_another_tokenizer()
    drafter = await start_core(HypothesisCore, {"model": ModelDrafter(stranger)}, "odd")
    verifier = await start_verifier()
    async with cluster([verifier], [drafter]) as running:
        run = await running.client.generate(PROMPT, temperature=0.0, max_tokens=10, ignore_eos=True)
    assert run.speculation.num_draft_tokens == 0
    assert stranger.bundle.fingerprint in caplog.text
    assert verifier.host.describe().tokenizer_fingerprint in caplog.text


async def test_a_local_cluster_does_not_start_without_the_drafters_that_it_was_asked_for(
    tmp_path, monkeypatch
):
    """It would answer as plain decoding does, and nobody would know why it is no faster."""
    monkeypatch.setattr(local, "_TAKEN_S", 0.5)
    log = tmp_path / "log"
    log.write_text("10:00 WARNING of another tokenizer\n10:01 INFO all is well\n")
    spec = ProcessSpec("orchestrator", (), tmp_path / "ready", log)
    odd = await start_core(HypothesisCore, {"model": ModelDrafter(of_another_tokenizer())}, "odd")
    drafter = await start_drafter()
    async with cluster([await start_verifier()], [drafter, odd]) as running:
        await local._require_drafters(spec, running.address, {drafter.address})
        said = f"orchestrator does not take the drafter on {odd.address}: 10:00 WARNING of another"
        with pytest.raises(StartError, match=said):
            await local._require_drafters(spec, running.address, {drafter.address, odd.address})


async def test_the_pool_knows_how_long_a_step_takes_by_role_and_method():
    async with cluster([await start_verifier()], [await start_drafter()]) as running:
        await running.client.generate(PROMPT, temperature=0.0, max_tokens=200, ignore_eos=True)
        await until(lambda: all(running.pool.step_ms(role) for role in Role))
        assert running.pool.step_ms(Role.DRAFTER, "model") > 0
        assert running.pool.step_ms(Role.DRAFTER, "ngram") == 0


async def test_workers_are_counted_and_their_memory_is_heard_of_until_they_are_gone():
    verifier = await known_verifier(1.0)
    async with (
        cluster([verifier], [], PATIENT) as running,
        stub(running.address) as front,
    ):
        pool = running.pool
        assert (pool.connected(Role.VERIFIER), pool.connected(Role.DRAFTER)) == (1, 0)
        await read(front.Generate(request(1, 5)))
        await until(lambda: pool.reports(Role.VERIFIER)[0].steps)
        [progress] = pool.reports(Role.VERIFIER)
        assert progress.kv_tokens_capacity == verifier.host.progress().kv_tokens_capacity
        await verifier.kill()
        await until(lambda: not pool.connected(Role.VERIFIER))
        assert pool.reports(Role.VERIFIER) == []
