"""A verifier process that drafts, too: the same text, one copy of weights and K/V."""

import asyncio

import pytest

from services.engine.native import NativeEngine
from tests.integration.cluster import (
    PROMPT,
    Worker,
    cluster,
    plain,
    start_beside,
    start_drafter,
    start_verifier,
)
from tests.integration.test_equal_to_plain_decoding import TOKENS, coupled, greedy
from tests.waiting import until

METHODS = ("skip", "lookahead", "lookahead,ngram")

REPEATED = {"logit_bias": {7: 100.0}}
"""Parameters of a text that n-grams foretell."""


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "gpt2"])
async def test_greedy_output_equals_transformers(arch):
    async with cluster([await start_beside(arch=arch)], []) as running:
        expected = plain(PROMPT, TOKENS, arch)
        for method in METHODS:
            run = await greedy(running, method=method)
            assert list(run.token_ids) == expected, method
            assert run.speculation.num_draft_tokens > 0, method


async def test_a_coupled_text_depends_on_the_seed_alone_in_a_crowd_too():
    async with cluster([await start_beside()], []) as running:
        texts = [await coupled(running, disable_speculative_decoding=True)]
        texts += [await coupled(running, method=method) for method in METHODS]
        crowd = [coupled(running, seed=seed, method=METHODS[seed % 2]) for seed in range(20, 26)]
        texts += (await asyncio.gather(coupled(running, method="skip"), *crowd))[:1]
    assert len({text.token_ids for text in texts}) == 1


@pytest.mark.parametrize("method", ["skip", "lookahead"])
@pytest.mark.parametrize("rule", ["standard", "block"])
async def test_sampled_drafts_are_judged_to_the_end(method, rule):
    async with cluster([await start_beside()], []) as running:
        run = await coupled(running, method=method, rejection_sample_method=rule)
    assert len(run.token_ids) == TOKENS
    assert run.speculation.num_draft_tokens > 0


async def test_look_ahead_rows_ride_on_the_verifiers_forwards():
    """Nothing is fed for a draft: every step has one forward, and drafts come of it."""
    verifier = await start_beside()
    async with cluster([verifier], [], pacing="fixed") as running:
        loaded, forwards = engine_of(verifier), 0
        forward = loaded.forward

        def counting(segments):
            nonlocal forwards
            forwards += bool(segments)
            return forward(segments)

        loaded.forward = counting
        run = await greedy(running, method="lookahead")
        steps = len(run.rounds)
    drafted = [stats for stats in run.rounds if stats.draft_tokens]
    assert len(drafted) > 5
    # The token after a block is the target's own: the rows draft what follows it.
    assert max(stats.draft_tokens for stats in drafted) == 3
    assert forwards == steps


async def test_without_riding_the_first_token_of_a_draft_is_sure():
    async with cluster([await start_beside(riding=False)], [], pacing="fixed") as running:
        run = await greedy(running, method="lookahead", num_speculative_tokens=4)
    assert list(run.token_ids) == plain(PROMPT, TOKENS)
    drafted = [stats for stats in run.rounds if stats.draft_tokens]
    assert sum(stats.accepted_tokens >= 1 for stats in drafted) > 5


async def test_of_several_verifiers_each_drafts_for_its_own_sessions():
    """No process of its own does, but for a verifier that drafts nothing."""
    verifiers = [await start_beside("v1"), await start_beside("v2"), await start_verifier("v3")]
    apart = await start_drafter("apart", methods=("ngram",))
    async with cluster(verifiers, [apart]) as running:
        runs = [coupled(running, seed=seed, method="ngram", **REPEATED) for seed in range(9)]
        told = [stats for run in await asyncio.gather(*runs) for stats in run.rounds]
    drafted = {(stats.verifier, stats.drafter) for stats in told if stats.drafter}
    assert drafted == {("v1", "v1"), ("v2", "v2"), ("v3", "apart")}


async def test_kv_is_reserved_once_and_given_back():
    verifier = await start_beside()
    async with cluster([verifier], []) as running:
        await greedy(running, method="skip")
        used = verifier.host.progress().kv_tokens_used
        await until(lambda: not verifier.host.progress().sessions)
        assert used < 2 * (len(PROMPT) + TOKENS + 64)
        await greedy(running, method="lookahead")
    assert engine_of(verifier).kv_tokens_used == 0


@pytest.mark.parametrize("pacing", ["adaptive", "eager"])
async def test_what_is_drafted_beside_a_step_changes_no_text_alone_or_in_a_crowd(pacing):
    async with cluster([await start_beside()], [], pacing=pacing) as running:
        assert list((await greedy(running, method="ngram")).token_ids) == plain(PROMPT, TOKENS)
        alone = await coupled(running, disable_speculative_decoding=True)
        runs = [coupled(running, method="ngram") for _ in range(6)]
        assert {one.token_ids for one in await asyncio.gather(*runs)} == {alone.token_ids}


async def test_a_text_that_is_foretold_beside_its_verifier_takes_few_steps():
    async with cluster([await start_beside()], [], pacing="eager") as running:
        run = await greedy(running, method="ngram", **REPEATED)
    assert set(run.token_ids) == set(REPEATED["logit_bias"])
    assert len(run.rounds) < TOKENS / 2
    assert sum(stats.draft_tokens for stats in run.rounds) > 20
    assert all(stats.drafter == "v1" for stats in run.rounds if stats.draft_tokens)


def engine_of(verifier: Worker) -> NativeEngine:
    return verifier.host._core._engine
