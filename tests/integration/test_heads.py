"""A head drafts from the target's states, beside its verifier and elsewhere: the text is the same.

The head is random, so that it is seldom right: most verdicts reject, and anchor it anew.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from paceline import Chunk

from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.eagle.eagle import EagleDrafter
from services.drafter.methods.model.ahead import AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.eagle.loading import load_head
from services.engine.lending import Lending
from services.engine.spec import ModelSpec
from tests.engine.eagle import kit
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    cluster,
    engine,
    plain,
    serve_beside,
    start_core,
    start_verifier,
)
from tests.integration.test_equal_to_plain_decoding import TOKENS, coupled, greedy
from tests.models import tiny_model_folder

METHODS = ("eagle", "ngram,eagle")


@pytest.fixture(scope="module", params=[0, 4], ids=["", "parallel"])
def head(request, tmp_path_factory):
    more = {"parallel": request.param, "ptd_token_id": 5} if request.param else {}
    return loaded(tmp_path_factory.mktemp("head"), 1, **more)


def loaded(folder, seed, **more):
    """A random head of the tiny target."""
    base = tiny_model_folder(folder, "llama")
    made = kit.make(
        seed,
        shape={"hidden_size": 64, "num_attention_heads": 4},
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        **more,
    )
    saved = kit.save_speculators(made, folder / "head")
    return load_head(ModelSpec(str(saved), "float32", base=str(base), threads=1))


def methods(head) -> dict[str, Any]:
    eagle, ngram = EagleDrafter(head), NgramDrafter()
    both = InformedDrafter(ngram, eagle, AheadRules(awaited=2), name="eagle")
    return {"eagle": eagle, "ngram": ngram, "ngram,eagle": both}


async def elsewhere(head):
    return [await start_verifier()], [await start_core(HypothesisCore, methods(head), "d1")]


async def beside(head):
    """A verifier in whose process the head is."""
    return [await serve_beside(engine(), methods(head), Lending())], []


@pytest.mark.parametrize("site", [elsewhere, beside])
@pytest.mark.parametrize("method", METHODS)
async def test_the_text_is_that_of_plain_decoding(head, site, method):
    async with cluster(*await site(head), PATIENT) as running:
        run = await greedy(running, method=method)
        assert list(run.token_ids) == plain(PROMPT, TOKENS)
        assert run.speculation.num_draft_tokens > 0
        alone = await coupled(running, disable_speculative_decoding=True)
        drawn = await coupled(running, method=method)
        assert drawn.token_ids == alone.token_ids
        assert drawn.speculation.num_draft_tokens > 0


@pytest.mark.parametrize("site", [elsewhere, beside])
@pytest.mark.parametrize(("rule", "width"), [("standard", 1), ("standard", 3), ("block", 1)])
async def test_rejection_rules_take_its_draws(head, site, rule, width):
    if width > 1 and head.parallel:
        pytest.skip("a parallel head drafts chains")
    async with cluster(*await site(head), PATIENT) as running:
        run = await coupled(
            running, method="eagle", rejection_sample_method=rule, num_candidates=width
        )
    assert len(run.token_ids) == TOKENS
    assert run.speculation.num_draft_tokens > 0


@pytest.mark.parametrize("method", METHODS)
async def test_a_drafter_that_takes_over_goes_on_from_the_states_that_come_then(head, method):
    verifiers, drafters = await elsewhere(head)
    drafters.append(await start_core(HypothesisCore, methods(head), "d2"))
    tokens: list[int] = []
    async with cluster(verifiers, drafters, PATIENT) as running:
        stream = running.client.generate(
            PROMPT, temperature=0.0, max_tokens=TOKENS, ignore_eos=True, method=method
        )
        killed = False
        async for event in stream:
            if isinstance(event, Chunk):
                tokens += event.token_ids
            if len(tokens) > 5 and not killed:
                killed = True
                await next(own for own in drafters if own.host.progress().sessions).kill()
    assert killed
    assert tokens == plain(PROMPT, TOKENS)


class Noting(EagleDrafter):
    """Counts the states that it is given, and the tokens that it drafts from them."""

    told = drafted = 0

    def anchor(self, key, position, states):
        self.told += len(states)
        super().anchor(key, position, states)

    def propose(self, asks):
        proposed = super().propose(asks)
        self.drafted += sum(len(one.tree) for one in proposed)
        return proposed


async def test_several_heads_of_a_target_draft_for_one_verifier(tmp_path):
    heads = [Noting(loaded(tmp_path / name, seed)) for seed, name in enumerate("ab", 1)]
    drafters = [
        await start_core(HypothesisCore, {"eagle": own}, f"d{i}") for i, own in enumerate(heads)
    ]
    async with cluster([await start_verifier()], drafters, PATIENT) as running:
        asked = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "method": "eagle"}
        # No text begins as another: of what is read from a cache there are no states.
        prompts = [f"{number} {PROMPT}" for number in range(4)]
        runs = await asyncio.gather(*(running.client.generate(one, **asked) for one in prompts))
    assert [list(run.token_ids) for run in runs] == [plain(one, TOKENS) for one in prompts]
    assert all(own.told for own in heads)
    assert all(own.drafted for own in heads)
