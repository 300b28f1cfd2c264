"""A verifier process that drafts, too: the same text, one copy of weights and K/V."""

import asyncio

import pytest

from services.runtime import tree_handover as handover
from services.runtime.tree_handover import Handover
from tests.integration.cluster import (
    PROMPT,
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


@pytest.fixture
def every_node_pays(monkeypatch):
    """Beside steps of a millisecond few do."""
    monkeypatch.setattr(handover, "worth_most", lambda chances, prices: len(chances))


@pytest.mark.parametrize("arch", ["llama", "gemma3_text", "gpt2"])
async def test_greedy_output_equals_transformers(arch):
    judge, drafts = await start_beside(arch=arch)
    async with cluster([judge], [drafts]) as running:
        expected = plain(PROMPT, TOKENS, arch)
        for method in METHODS:
            run = await greedy(running, method=method)
            assert list(run.token_ids) == expected, method
            assert run.speculation.num_draft_tokens > 0, method


async def test_a_coupled_text_depends_on_the_seed_alone_in_a_crowd_too():
    judge, drafts = await start_beside()
    async with cluster([judge], [drafts]) as running:
        texts = [await coupled(running, disable_speculative_decoding=True)]
        texts += [await coupled(running, method=method) for method in METHODS]
        crowd = [coupled(running, seed=seed, method=METHODS[seed % 2]) for seed in range(20, 26)]
        texts += (await asyncio.gather(coupled(running, method="skip"), *crowd))[:1]
    assert len({text.token_ids for text in texts}) == 1


@pytest.mark.parametrize("method", ["skip", "lookahead"])
@pytest.mark.parametrize("rule", ["standard", "block"])
async def test_sampled_drafts_are_judged_to_the_end(method, rule):
    judge, drafts = await start_beside()
    async with cluster([judge], [drafts]) as running:
        run = await coupled(running, method=method, rejection_sample_method=rule)
    assert len(run.token_ids) == TOKENS
    assert run.speculation.num_draft_tokens > 0


async def test_look_ahead_rows_ride_on_the_verifiers_forwards():
    """Nothing is fed for a draft: every round has one forward, and drafts come of it."""
    judge, drafts = await start_beside()
    # Whatever else runs here, the verifier waits for the drafts.
    async with cluster([judge], [drafts], pacing="fixed") as running:
        run = await greedy(running, method="lookahead")
        assert drafts.host.progress().kv_tokens_capacity == 0
    drafted = [stats for stats in run.rounds if stats.draft_tokens]
    assert len(drafted) > 5
    # The token after a block is the target's own: the rows draft what follows it.
    assert max(stats.draft_tokens for stats in drafted) == 3


async def test_without_riding_the_first_token_of_a_draft_is_sure():
    judge, drafts = await start_beside(riding=False)
    async with cluster([judge], [drafts], pacing="fixed") as running:
        run = await greedy(running, method="lookahead", num_speculative_tokens=4)
    assert list(run.token_ids) == plain(PROMPT, TOKENS)
    drafted = [stats for stats in run.rounds if stats.draft_tokens]
    assert sum(stats.accepted_tokens >= 1 for stats in drafted) > 5


async def test_of_several_verifiers_that_draft_each_session_is_drafted_beside_its_own():
    """Not by whoever has the fewest sessions, nor by a process of its own."""
    (first, drafts), (second, others) = await start_beside("v1"), await start_beside("v2")
    apart = await start_drafter("apart", methods=("ngram",))
    async with cluster([first, second], [apart, drafts, others]) as running:
        runs = [coupled(running, seed=seed, method="ngram", **REPEATED) for seed in range(6)]
        told = [stats for run in await asyncio.gather(*runs) for stats in run.rounds]
    drafted = {(stats.verifier, stats.drafter) for stats in told if stats.drafter}
    assert drafted == {("v1", "v1-drafter"), ("v2", "v2-drafter")}


async def test_kv_is_reserved_once_and_given_back():
    judge, drafts = await start_beside()
    async with cluster([judge], [drafts]) as running:
        await greedy(running, method="skip")
        used = judge.host.progress().kv_tokens_used
        await until(lambda: not any(one.host.progress().sessions for one in (judge, drafts)))
        assert used < 2 * (len(PROMPT) + TOKENS + 64)
        await greedy(running, method="lookahead")
    assert judge.host._core._engine.kv_tokens_used == 0


async def test_a_session_whose_verifier_is_elsewhere_gets_kv_of_its_own():
    judge, drafts = await start_beside("v2")
    alone = await start_verifier("v1")
    async with cluster([alone], [drafts]) as running:
        for method in ("skip", "lookahead"):
            run = await greedy(running, method=method)
            assert list(run.token_ids) == plain(PROMPT, TOKENS)
            assert run.speculation.num_draft_tokens > 0
    judge.stop.set()
    await judge.task


async def test_rounds_take_what_is_drafted_beside_them_and_the_text_is_the_same(
    monkeypatch, every_node_pays
):
    """Greedy and coupled, alone and in a crowd; most drafts never came to the orchestrator."""
    taken = []
    take = Handover.take
    monkeypatch.setattr(
        Handover, "take", lambda *given: (taken.append(one := take(*given)), one)[1]
    )
    judge, drafts = await start_beside()
    async with cluster([judge], [drafts], pacing="thompson") as running:
        assert list((await greedy(running, method="ngram")).token_ids) == plain(PROMPT, TOKENS)
        alone = await coupled(running, disable_speculative_decoding=True)
        runs = [coupled(running, method="ngram") for _ in range(6)]
        assert {one.token_ids for one in await asyncio.gather(*runs)} == {alone.token_ids}
        again = await greedy(running, method="ngram", **REPEATED)
    assert set(again.token_ids) == set(REPEATED["logit_bias"])
    drafted = sum(stats.draft_tokens for stats in again.rounds)
    assert sum(len(one.tree) for one in taken) > drafted / 2 > 10
    assert len(again.rounds) < TOKENS / 2
    assert all(stats.drafter == "v1-drafter" for stats in again.rounds if stats.draft_tokens)
