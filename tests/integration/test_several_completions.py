"""Several completions of one prompt: each a session of its own, and its text that of a request."""

import asyncio

import paceline
import pytest
from paceline import Chunk, Complete, SessionStatus, Started

from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    Cluster,
    cluster,
    orchestrator,
    start_drafter,
    start_verifier,
)
from tests.models import tiny_tokenizer

LONG = " ".join([PROMPT] * 6)
TOKENS = len(tiny_tokenizer().encode(LONG))
WARM = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True, "seed": 2**64 - 2}
WAYS = {
    "greedy": WARM | {"temperature": 0.0},
    "coupled": WARM | {"rejection_sample_method": "coupled"},
    "standard": WARM | {"rejection_sample_method": "standard"},
    "block": WARM | {"rejection_sample_method": "block"},
    "plain": WARM | {"disable_speculative_decoding": True},
}


async def one_by_one(running: Cluster, count: int, prompt: str = PROMPT, **options):
    """Single requests with the seeds that completions have."""
    first = options.pop("seed")
    seeds = [(first + index) % 2**64 for index in range(count)]
    return [await running.client.generate(prompt, seed=seed, **options) for seed in seeds]


@pytest.mark.parametrize("way", WAYS)
async def test_each_completion_is_the_text_of_a_single_request_with_its_seed(way):
    verifiers, drafters = [await start_verifier()], [await start_drafter(seed=3)]
    async with cluster(verifiers, drafters, PATIENT, pacing="fixed") as running:
        alone = await one_by_one(running, 4, **WAYS[way])
        several = await running.client.generate(PROMPT, n=4, request_id="r", **WAYS[way])
        assert [one.token_ids for one in several] == [one.token_ids for one in alone]
        assert [one.text for one in several] == [one.text for one in alone]
        assert [one.session_id for one in several] == ["r.0", "r.1", "r.2", "r.3"]
        assert [one.seed for one in several] == [2**64 - 2, 2**64 - 1, 0, 1]
        assert [one.index for one in several] == [0, 1, 2, 3]
        assert len({one.text for one in several}) == (1 if way == "greedy" else 4)


@pytest.mark.parametrize("options", [{}, {"ephemeral": True}], ids=["kept", "ephemeral"])
async def test_the_prompt_of_eight_completions_is_computed_once(options):
    verifiers = [await start_verifier("v1"), await start_verifier("v2")]
    async with cluster(verifiers, [], PATIENT) as running:
        several = await running.client.generate(LONG, n=8, **WARM, **options)
        assert [one.usage.prompt_tokens for one in several] == [TOKENS] * 8
        cached = sorted(one.usage.cached_tokens for one in several)
        assert cached == [0] + [TOKENS - 1] * 7
