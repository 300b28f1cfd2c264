"""Texts that begin as others did cost less, and change nothing; what does not fit gives way."""

import asyncio

import pytest
from paceline import InvalidArgument
from paceline.client import Client

from services.runtime.serving.bearer import token_entry
from services.verifier.caches import Caches
from services.verifier.running.session import RunningSession
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    cluster,
    plain,
    plain_after,
    start_beside,
    start_drafter,
    start_verifier,
)
from tests.integration.known import door_of
from tests.models import tiny_tokenizer

GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
LONG = " ".join([PROMPT] * 6)


def tokens(text: str) -> list[int]:
    return tiny_tokenizer().encode(text)


async def test_beside_a_drafter_that_borrows_a_text_taken_over_stays_the_same():
    async with cluster([await start_beside()], [], PATIENT) as running:
        text = tokens(LONG)
        for _ in range(4):
            run = await running.client.generate(tokens=text, method="skip", **GREEDY)
            assert list(run.token_ids) == plain_after(text, 24)
            text = [*text, *run.token_ids, *tokens("and then")]
        assert run.usage.cached_tokens > len(tokens(LONG))


async def test_every_chat_goes_on_where_its_beginning_was_computed():
    verifiers = [await start_verifier() for _ in range(3)]
    async with cluster(verifiers, [], PATIENT) as running:
        chats = [tokens(f"{name} {LONG}") for name in ("one", "two", "three", "four")]
        for turn in range(3):
            runs = await asyncio.gather(
                *(running.client.generate(tokens=chat, **GREEDY) for chat in chats)
            )
            for place, (chat, run) in enumerate(zip(chats, runs, strict=True)):
                assert list(run.token_ids) == plain_after(chat, 24)
                if turn:
                    assert run.usage.cached_tokens > len(chat) // 2
                chats[place] = [*chat, *run.token_ids, *tokens("and then")]


async def test_tenants_and_ephemeral_sessions_share_nothing(tmp_path):
    known = {name: f"token-of-{name}-0123456789" for name in ("acme", "beta")}
    tenants = {name: {"tokens": [token_entry(token)]} for name, token in known.items()}
    door = door_of(tmp_path, tenants)
    async with cluster([await start_verifier()], [], PATIENT, door=door) as running:

        async def cached(tenant: str, **more: object) -> int:
            async with Client(running.address, token=known[tenant]) as client:
                run = await client.generate(LONG, **GREEDY, **more)
                assert list(run.token_ids) == plain(LONG, 24)
                return run.usage.cached_tokens

        assert await cached("acme", ephemeral=True) == 0
        assert await cached("acme") == 0
        assert await cached("beta") == 0
        assert await cached("acme", ephemeral=True) == 0
        assert await cached("acme") > 0


def noting(preempted: list[int]):
    preempt = Caches._preempt

    def note(self: Caches, session: RunningSession) -> None:
        preempted.append(session.key[1])
        preempt(self, session)

    return note


@pytest.mark.parametrize("drafters", [0, 1])
async def test_sessions_that_outgrow_the_memory_take_turns_and_every_text_is_whole(
    drafters, monkeypatch
):
    preempted: list[int] = []
    monkeypatch.setattr(Caches, "_preempt", noting(preempted))
    verifier = await start_verifier(kv_capacity_tokens=500)
    beside = [await start_drafter(seed=3) for _ in range(drafters)]
    greedy = GREEDY | {"max_tokens": 180}
    async with cluster([verifier], beside, PATIENT, max_tokens_in_flight=10_000) as running:
        prompts = [f"{name} {PROMPT}" for name in "abcdef"]
        runs = await asyncio.gather(*(running.client.generate(one, **greedy) for one in prompts))
        for prompt, run in zip(prompts, runs, strict=True):
            assert list(run.token_ids) == plain(prompt, 180)
        assert preempted
        assert verifier.host.progress().kv_tokens_used == 0


async def test_what_no_verifier_could_ever_hold_is_refused_with_the_figures():
    verifier = await start_verifier(kv_capacity_tokens=300)
    async with cluster([verifier], [], max_tokens_in_flight=10_000) as running:
        with pytest.raises(InvalidArgument, match=r"sampling.max_tokens: 300 .* holds 300"):
            await running.client.generate(PROMPT, max_tokens=300)
        with pytest.raises(InvalidArgument, match=r"prompt: .* holds 300"):
            await running.client.generate(tokens=list(range(3, 299)), max_tokens=3)
        assert not running.inference.active_sessions
        run = await running.client.generate(PROMPT, **GREEDY)
        assert list(run.token_ids) == plain(PROMPT, 24)
