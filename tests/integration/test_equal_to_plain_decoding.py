"""The text that leaves the whole system is the target's own, token for token (float32)."""

import asyncio

import pytest
from paceline import DraftSource, Generation

from tests.integration.cluster import (
    ARCHITECTURES,
    PATIENT,
    PROMPT,
    Cluster,
    cluster,
    plain,
    start_drafter,
    start_verifier,
)
from tests.models import tiny_tokenizer

TOKENS = 40


async def greedy(
    running: Cluster, prompt: str = PROMPT, tokens: int = TOKENS, **more
) -> Generation:
    return await running.client.generate(
        prompt, temperature=0.0, max_tokens=tokens, ignore_eos=True, include_rounds=True, **more
    )


async def coupled(running: Cluster, prompt: str = PROMPT, seed: int = 7, **more) -> Generation:
    options = {"temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True, **more}
    return await running.client.generate(prompt, seed=seed, include_rounds=True, **options)


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_greedy_output_equals_transformers_with_every_drafter(arch):
    drafters = [
        await start_drafter("same", arch, methods=("model", "ngram", "skip", "lookahead")),
    ]
    async with cluster([await start_verifier(arch=arch)], drafters) as running:
        expected = plain(PROMPT, TOKENS, arch)
        own = await greedy(running, method="model")
        copied = await greedy(running, method="ngram")
        skipped = await greedy(running, method="skip")
        both = await greedy(running, method="ngram,model")
        ahead = await greedy(running, method="lookahead")
        alone = await greedy(running, disable_speculative_decoding=True)
    assert list(both.token_ids) == expected
    assert both.speculation.draft_acceptance_rate > 0
    assert list(own.token_ids) == expected
    assert list(copied.token_ids) == expected
    assert list(skipped.token_ids) == expected
    assert skipped.speculation.num_draft_tokens > 0
    assert list(ahead.token_ids) == expected
    assert list(alone.token_ids) == expected
    assert alone.speculation.num_draft_tokens == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_greedy_output_equals_transformers_with_measured_trees_and_unfolded_graphs(arch):
    """Also where the graph's guesses are another model's, and where requests run together."""
    own = await start_drafter("own", arch, methods=("graph", "model"))
    other = await start_drafter("other", arch, seed=3, methods=("graph", "model"))
    expected = plain(PROMPT, TOKENS, arch)
    for drafter in (own, other):
        async with cluster([await start_verifier(arch=arch)], [drafter], PATIENT) as running:
            asked = [("graph", 1), ("graph", 2), ("graph", 4), ("model", 4)]
            runs = await asyncio.gather(
                *(greedy(running, method=name, num_candidates=width) for name, width in asked)
            )
        assert [list(run.token_ids) for run in runs] == [expected] * 4
        if drafter is own:
            assert runs[0].speculation.draft_acceptance_rate == 1.0
            drafted = [stats.accepted_tokens for stats in runs[2].rounds if stats.draft_tokens]
            assert min(drafted[:-1]) == 4, "the accepted path reaches full depth"


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
@pytest.mark.parametrize("method", ["text", "ngram,text"])
async def test_drafts_that_pass_as_text_change_no_token(arch, method):
    """The draft model has another vocabulary; random texts of the target are no UTF-8."""
    drafter = await start_drafter("other", arch, seed=3, methods=("ngram", "text"))
    async with cluster([await start_verifier(arch=arch)], [drafter], PATIENT) as running:
        own = await greedy(running, method=method)
        assert list(own.token_ids) == plain(PROMPT, TOKENS, arch)
        alone = await coupled(running, disable_speculative_decoding=True)
        drawn = await coupled(running, method=method)
        assert drawn.token_ids == alone.token_ids
        judged = await coupled(running, method=method, rejection_sample_method="block")
    for run in (own, drawn, judged):
        assert run.speculation.num_draft_tokens > 0
    sources = {one.source for one in own.speculation.sources}
    assert DraftSource.TEXT in sources


@pytest.mark.parametrize("pacing", ["eager", "fixed"])
async def test_the_target_as_its_own_drafter_is_always_accepted_and_never_rolled_back(pacing):
    workers = [await start_verifier()], [await start_drafter()]
    # Long, so that a drafter that nobody waits for gets ahead of a target as quick as this one.
    tokens = 200
    async with cluster(*workers, pacing=pacing) as running:
        for run in (
            await greedy(running, tokens=tokens),
            await coupled(running, max_tokens=tokens),
        ):
            assert run.speculation.num_draft_tokens > 0
            assert run.speculation.draft_acceptance_rate == 1.0
            assert {stats.epoch for stats in run.rounds} == {1}


async def test_look_ahead_drafts_of_the_target_bring_two_tokens_or_more_for_two_forwards():
    drafters = [await start_drafter(methods=("lookahead",))]
    options = {"pacing": "fixed", "patience": PATIENT}
    async with cluster([await start_verifier()], drafters, **options) as running:
        window = {"num_speculative_tokens": 4}
        runs = [await greedy(running, **window), await coupled(running, **window)]
    assert list(runs[0].token_ids) == plain(PROMPT, TOKENS)
    for run in runs:
        # A draft that came too late for its round is left with what follows its sure token.
        sizes = [stats.draft_tokens for stats in run.rounds]
        timely = [
            stats
            for before, stats in zip([1, *sizes], run.rounds, strict=False)
            if before and stats.draft_tokens
        ]
        assert len(timely) > 5
        assert all(stats.accepted_tokens >= 1 for stats in timely)
        # The last round may be cut where the text ends.
        assert all(stats.emitted_tokens >= 2 for stats in timely[:-1])


async def test_a_coupled_text_depends_on_the_seed_alone():
    """Not on the drafter, its window, or who else is served meanwhile."""
    texts = []
    other = await start_drafter("other", seed=3, methods=("model", "ngram", "skip", "graph"))
    same = await start_drafter("same", methods=("model", "graph", "lookahead"))
    async with cluster([await start_verifier()], [other]) as running:
        texts.append(await coupled(running, disable_speculative_decoding=True))
        ways = [("model", 1), ("model", 5), ("ngram", 16), ("ngram,model", 5), ("model,ngram", 5)]
        for method, window in (*ways, ("skip", 6), ("skip,ngram", 6)):
            texts.append(await coupled(running, method=method, num_speculative_tokens=window))
        texts.append(await coupled(running, method="graph", num_candidates=3))
        crowd = [coupled(running, seed=seed, top_p=0.9) for seed in range(20, 27)]
        texts += (await asyncio.gather(coupled(running), *crowd))[:1]
    async with cluster([await start_verifier()], [same]) as running:
        texts.append(await coupled(running))
        texts.append(await coupled(running, method="graph", num_candidates=3))
        assert texts[-1].speculation.block_efficiency > 3
        for window in (2, 8):
            texts.append(await coupled(running, method="lookahead", num_speculative_tokens=window))
        assert (await coupled(running, seed=8)).token_ids != texts[0].token_ids
    assert len({text.token_ids for text in texts}) == 1


async def test_the_text_is_the_decoded_tokens_and_the_chunks_joined():
    async with cluster([await start_verifier()], [await start_drafter(seed=3)]) as running:
        events = [
            event
            async for event in running.client.generate(
                PROMPT, temperature=0.0, max_tokens=TOKENS, ignore_eos=True, include_rounds=True
            )
        ]
    chunks, complete = events[1:-1], events[-1]
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    text = "".join(chunk.text for chunk in chunks)
    assert complete.text == text
    assert (
        tiny_tokenizer().decode(tokens, skip_special_tokens=True).startswith(text.rstrip("\ufffd"))
    )
    assert all("".join(chunk.pieces) == chunk.text for chunk in chunks)
    assert [len(chunk.origins) for chunk in chunks] == [len(c.token_ids) for c in chunks]
    assert sum(s.emitted_tokens for chunk in chunks for s in chunk.rounds) == len(tokens)
