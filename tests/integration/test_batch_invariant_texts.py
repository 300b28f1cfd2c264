"""One text, whatever runs beside it and whoever goes on with it: in float32, or where asked for."""

import asyncio
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from paceline import Chunk, Client

from bench.same_texts import WINDOWS, Asking, compared
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine import number_formats
from services.engine.native import NativeEngine
from services.engine.sampling import rounding
from services.engine.spec import ModelSpec
from tests.integration.cluster import (
    PATIENT,
    Worker,
    cluster,
    start_core,
    verifier_core,
)
from tests.models import tiny_model, tiny_tokenizer

TOKENS = 14
PROMPTS = (
    "Write a limerick about a small boat that wanted to be a train.",
    "What is the capital of France, and what is it known for?",
    "Tom has 12 apples and gives away a third of them. How many has he left?",
    "Explain to a child why the sky is blue, and then why it is blue.",
)


@cache
def demo(*, invariant: bool) -> NativeEngine:
    torch.set_num_threads(1)
    spec = ModelSpec(
        "smollm2-135m-instruct",
        "bfloat16",
        threads=1,
        kv_capacity_tokens=8192,
        batch_invariant=invariant,
    )
    return NativeEngine.load(spec)


async def verifier(name: str, *, invariant: bool = True) -> Worker:
    made = demo(invariant=invariant)
    return await start_core(verifier_core, made, name, made.bundle)


Said = tuple[tuple[int, float], ...]
"""Each token with its log-probability, in which the last bit counts."""


async def said(client: Client, place: int, *, seeded: bool, **how: Any) -> Said:
    drawn = {"temperature": 1.0, "seed": place} if seeded else {"temperature": 0.0}
    asked = {"max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1, **drawn, **how}
    made = await client.generate(PROMPTS[place], **asked)
    return tuple((token.token_id, token.logprob) for token in made.logprobs)


async def all_texts(
    client: Client, crowd: int, window: int, prompts: int = len(PROMPTS)
) -> list[Said]:
    """Of each prompt the greedy and the seeded text, so many at once; window 0: plain decoding."""
    drafted = {"num_speculative_tokens": window, "method": "ngram"}
    how = drafted if window else {"disable_speculative_decoding": True}
    turns = asyncio.Semaphore(crowd)

    async def one(place: int, seeded: bool) -> Said:
        async with turns:
            return await said(client, place, seeded=seeded, **how)

    asked = [(place, seeded) for place in range(prompts) for seeded in (False, True)]
    return await asyncio.gather(*(one(*each) for each in asked))


async def drafter() -> Worker:
    return await start_core(HypothesisCore, {"ngram": NgramDrafter()}, "d1")


async def test_texts_in_bfloat16_are_those_of_plain_decoding_in_any_crowd_and_window():
    verifiers, drafters = [await verifier("v1")], [await drafter()]
    async with cluster(verifiers, drafters, PATIENT) as running:
        alone = await all_texts(running.client, crowd=1, window=0)
        for crowd, window in ((1, 5), (4, 2), (8, 8)):
            assert await all_texts(running.client, crowd, window) == alone, (crowd, window)


async def test_without_the_mode_probabilities_depend_on_what_runs_beside_a_text():
    verifiers, drafters = [await verifier("v1", invariant=False)], [await drafter()]
    async with cluster(verifiers, drafters, PATIENT) as running:
        # One token's last bit in one text is enough.
        alone = await all_texts(running.client, crowd=1, window=0, prompts=2)
        assert await all_texts(running.client, crowd=4, window=8, prompts=2) != alone


@pytest.mark.parametrize("seeded", [False, True])
async def test_a_text_that_another_verifier_goes_on_with_stays_the_same(seeded):
    verifiers, drafters = [await verifier("v1")], [await drafter()]
    async with cluster(verifiers, drafters, PATIENT) as running:
        expected = await said(running.client, 0, seeded=seeded, disable_speculative_decoding=True)
    first, second = await verifier("v1"), await verifier("v2")
    async with cluster([first, second], [await drafter()], PATIENT) as running:
        drawn = {"temperature": 1.0, "seed": 0} if seeded else {"temperature": 0.0}
        events = running.client.generate(
            PROMPTS[0], max_tokens=TOKENS, ignore_eos=True, include_rounds=True, **drawn
        )
        tokens: list[int] = []
        served: list[str] = []
        async for event in events:
            if not isinstance(event, Chunk):
                continue
            tokens += event.token_ids
            served += [stats.verifier for stats in event.rounds]
            if len(set(served)) == 1 and len(tokens) < TOKENS // 2:
                await (first if served[0] == "v1" else second).kill()
    assert len(set(served)) == 2
    assert tokens == [token for token, _ in expected]


WORDS = ("the", "small", "drafter", "rides", "ahead", "large", "verifier", "checks", "each", "law")
NEAR = rounding("float32")
FEW = 8
"""Tokens of each of many texts."""


def random_prompts(count: int) -> list[tuple[str, int]]:
    """Of a few to many words, each with a seed."""
    random = Random(count)
    return [(" ".join(random.choices(WORDS, k=random.randint(2, 20))), i) for i in range(count)]


async def with_twins(dtype: str = "float32", *, invariant: bool | None) -> Worker:
    """Of a model to which each even token is as likely as the next one, but for rounding."""
    model = tiny_model("llama")
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[::2] * (1 + 3e-7)
    torch.set_num_threads(1)
    spec = ModelSpec("llama", dtype, batch_invariant=invariant)
    made = NativeEngine.from_model(model, tiny_tokenizer(), spec)
    return await start_core(verifier_core, made, "v1", made.bundle)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
async def test_500_texts_are_the_same_alone_in_crowds_and_with_drafts_at_near_ties(dtype):
    """Every choice is one: of a row that moved by a bit, the text would be another."""
    if dtype == "int8" and not number_formats.cpu().int8:
        pytest.skip("this CPU has no FBGEMM")
    verifiers, drafters = [await with_twins(dtype, invariant=None)], [await drafter()]
    async with cluster(verifiers, drafters, PATIENT) as running:
        asking = Asking(running.client, random_prompts(500), FEW)
        alone = await asking.plain(greedy=True)
        for windows in ((0,), WINDOWS):
            found = compared(alone, await asking.beside(windows, greedy=True), NEAR)
            assert (found["same"], found["to the bit"]) == (500, 500), windows
            assert found["near"] == found["tokens"]
            assert (found["accepted"] > 0) == (windows is WINDOWS)


async def test_without_it_texts_in_float32_depend_on_what_runs_beside_them():
    verifiers, drafters = [await with_twins(invariant=False)], [await drafter()]
    async with cluster(verifiers, drafters, PATIENT) as running:
        asking = Asking(running.client, random_prompts(100), TOKENS)
        alone = await asking.plain(greedy=True)
        found = compared(alone, await asking.beside(WINDOWS, greedy=True), NEAR)
    assert found["same"] < 100
