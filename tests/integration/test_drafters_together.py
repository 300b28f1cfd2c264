"""Several methods for one session, and phrases from one session to the next, over gRPC."""

import asyncio

import pytest
from paceline import DraftSource, Generation, InvalidArgument

from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import SmallTrees
from services.engine.ngram_file import NgramFile
from tests.integration.cluster import (
    PROMPT,
    Cluster,
    Worker,
    cluster,
    plain,
    start_core,
    start_drafter,
    start_verifier,
)
from tests.waiting import until

TOKENS = 40
# Too short for its words to come again in the text.
SHORT = "ride"


async def greedy(running: Cluster, prompt: str = PROMPT, **options) -> Generation:
    fixed = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "include_rounds": True}
    return await running.client.generate(prompt, **{**fixed, **options})


async def test_a_session_of_several_methods_goes_to_a_drafter_that_runs_them_all():
    drafters = [
        await start_drafter("lone", seed=3),
        await start_drafter("both", seed=3, methods=("model", "ngram")),
        await start_drafter("copy", methods=("ngram",)),
    ]
    async with cluster([await start_verifier()], drafters) as running:
        runs = [await greedy(running, method=way) for way in ("ngram,model", "model, ngram")]
    for run in runs:
        assert list(run.token_ids) == plain(PROMPT, TOKENS)
        assert {stats.drafter for stats in run.rounds if stats.drafter} == {"both"}


@pytest.mark.parametrize("rule", ["standard", "block"])
async def test_under_rejection_copies_and_draws_are_judged_together(rule):
    drafters = [await start_drafter(methods=("model", "ngram"))]
    async with cluster([await start_verifier()], drafters, pacing="fixed") as running:
        run = await greedy(
            running, method="ngram,model", temperature=1.0, rejection_sample_method=rule
        )
        trees = {"num_candidates": 3, "temperature": 1.0, "rejection_sample_method": "standard"}
        with pytest.raises(InvalidArgument, match="trees of several methods"):
            await greedy(running, method="ngram,model", **trees)
    assert len(run.token_ids) == TOKENS
    assert {stats.rejection_sample_method.value for stats in run.rounds} == {rule}
    # The drafter's model is the target: what is not copied is mostly kept.
    assert run.speculation.draft_acceptance_rate > 0.2


async def test_what_each_source_brought_is_told_at_the_end_and_again_later():
    drafters = [
        await start_drafter("both", seed=3, methods=("model", "ngram")),
        await start_drafter("copy", methods=("ngram",)),
    ]
    async with cluster([await start_verifier()], drafters, pacing="fixed") as running:
        for method, sources in (
            ("model", {DraftSource.MODEL}),
            ("ngram", {DraftSource.THIS_TEXT}),
            ("ngram,model", {DraftSource.MODEL, DraftSource.THIS_TEXT}),
        ):
            run = await greedy(running, method=method, num_candidates=1, max_tokens=60)
            told = run.speculation
            assert {one.source for one in told.sources} == sources
            assert sum(one.num_draft_tokens for one in told.sources) == told.num_draft_tokens
            accepted = sum(one.num_accepted_draft_tokens for one in told.sources)
            assert accepted == told.num_accepted_draft_tokens
            assert (await running.client.resume(run.session_id)).speculation.sources == told.sources


async def test_of_small_trees_what_was_sent_is_told_by_source():
    drafters = [await start_drafter("copy", methods=("ngram",))]
    async with cluster([await start_verifier()], drafters, pacing="adaptive") as running:
        # On a busy machine a tree may come too late for a target as quick as this one.
        runs = [await greedy(running, method="ngram") for _ in range(8)]
    for run in runs:
        assert list(run.token_ids) == plain(PROMPT, TOKENS)
        told = run.speculation
        assert sum(one.num_draft_tokens for one in told.sources) == told.num_draft_tokens
        accepted = sum(one.num_accepted_draft_tokens for one in told.sources)
        assert accepted == told.num_accepted_draft_tokens
    mine = {DraftSource.THIS_TEXT, DraftSource.TARGET_ROWS}
    assert {one.source for one in runs[0].speculation.sources} <= mine
    later = {one.source for run in runs[1:] for one in run.speculation.sources}
    assert DraftSource.OTHER_TEXTS in later


# After a token of this text anything may come; what the target said there is taken for certain.
BY_ROWS = {
    f"{mode}.{name}": value
    for mode in ("greedy", "coupled")
    for name, value in {"own1": 3.0, "row": 4.0, "row_rank": 1.0, "row_first": 2.0}.items()
}


async def start_drafter_by_rows() -> Worker:
    drafter = NgramDrafter(small=SmallTrees(NgramFile("", "", "", 0, [], b"", (), BY_ROWS)))
    return await start_core(HypothesisCore, {"ngram": drafter}, "rows")


@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "drawn"])
async def test_what_the_target_says_of_drafts_reaches_its_drafter_and_changes_no_text(sampled):
    drafters = [await start_drafter_by_rows()]
    async with cluster([await start_verifier()], drafters, pacing="adaptive") as running:
        alone = await greedy(running, max_tokens=200, disable_speculative_decoding=True, **sampled)
        told: set[DraftSource] = set()
        # Beside so small a target a tree pays or not as the machine has other work.
        async with asyncio.timeout(60):
            while DraftSource.TARGET_ROWS not in told:
                run = await greedy(running, method="ngram", max_tokens=200, **sampled)
                assert run.token_ids == alone.token_ids
                told = {one.source for one in run.speculation.sources if one.num_draft_tokens}


async def test_a_draft_model_has_a_word_in_small_trees_and_changes_no_text():
    drafters = [await start_drafter("both", methods=("ngram", "model"))]
    async with cluster([await start_verifier()], drafters) as running:
        assert (await running.client.server_info()).default_method == "ngram,model"
        run = await greedy(running, SHORT)
        noisy = await greedy(running, SHORT, temperature=1.0, seed=7)
        alone = await greedy(
            running, SHORT, temperature=1.0, seed=7, disable_speculative_decoding=True
        )
    assert list(run.token_ids) == plain(SHORT, TOKENS)
    assert noisy.token_ids == alone.token_ids
    told = {one.source: one for one in run.speculation.sources}
    # It is the target itself: what it says is right.
    assert told[DraftSource.MODEL].num_accepted_draft_tokens > 0
    assert DraftSource.MODEL in {one.source for one in noisy.speculation.sources}


async def test_lengthened_drafts_give_the_same_text_greedy_and_coupled():
    texts = []
    for lengthen in (0, 4):
        drafter = await start_drafter(seed=3, methods=("model", "ngram"), lengthen=lengthen)
        async with cluster([await start_verifier()], [drafter], pacing="fixed") as running:
            run = await greedy(running, method="model,ngram")
            noisy = await greedy(running, method="model,ngram", temperature=1.0, seed=7)
            alone = await greedy(
                running, temperature=1.0, seed=7, disable_speculative_decoding=True
            )
        assert list(run.token_ids) == plain(PROMPT, TOKENS)
        assert noisy.token_ids == alone.token_ids
        texts.append(noisy.token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("ephemeral", [False, True])
async def test_a_session_is_drafted_what_one_before_it_said_unless_that_was_ephemeral(ephemeral):
    async with cluster(
        [await start_verifier()], [await start_drafter(methods=("ngram",))], pacing="fixed"
    ) as running:
        first = await greedy(running, SHORT, ephemeral=ephemeral)
        await _closed(running)
        second = await greedy(running, SHORT)
    assert first.token_ids == second.token_ids == tuple(plain(SHORT, TOKENS))
    gained = second.speculation.num_accepted_draft_tokens - (
        first.speculation.num_accepted_draft_tokens
    )
    assert gained == 0 if ephemeral else gained > 5


async def _closed(running: Cluster) -> None:
    """Wait until the drafter has forgotten every session."""
    await until(lambda: not running.drafters[0].host.progress().sessions)
