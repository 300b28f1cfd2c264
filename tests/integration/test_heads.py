"""A head drafts from the target's states, beside its verifier and elsewhere: the text is the same.

The head is random, so that it is seldom right: most verdicts reject, and anchor it anew.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from paceline import Chunk

from orchestrator.core.state import Limits
from services.contract.states import Fate
from services.contract.types import Role
from services.drafter.core import DrafterCore
from services.drafter.methods.eagle.eagle import EagleDrafter
from services.drafter.methods.model.ahead import AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.eagle.loading import load_head
from services.engine.lending import Lending
from services.engine.native import NativeEngine
from services.engine.port import Capability
from services.engine.spec import ModelSpec
from services.verifier.core import VerifierCore
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
    target,
)
from tests.integration.test_equal_to_plain_decoding import TOKENS, coupled, greedy
from tests.models import tiny_model_folder, tiny_tokenizer

METHODS = ("eagle", "ngram,eagle")


@pytest.fixture(scope="module", params=[0, 4], ids=["", "parallel"])
def head(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    base = tiny_model_folder(folder, "llama")
    more = {"parallel": request.param, "ptd_token_id": 5} if request.param else {}
    made = kit.make(
        1,
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
    return [await start_verifier()], [await start_core(DrafterCore, methods(head), "d1")]


async def beside(head):
    """A verifier in whose process the head is."""
    judge, drafts = await serve_beside(engine(), methods(head), Lending())
    return [judge], [drafts]


@pytest.mark.parametrize("site", [elsewhere, beside])
@pytest.mark.parametrize("method", METHODS)
async def test_the_text_is_that_of_plain_decoding(head, site, method):
    async with cluster(*await site(head), PATIENT, fallback=False) as running:
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
    async with cluster(*await site(head), PATIENT, fallback=False) as running:
        run = await coupled(
            running, method="eagle", rejection_sample_method=rule, num_candidates=width
        )
    assert len(run.token_ids) == TOKENS
    assert run.speculation.num_draft_tokens > 0


@pytest.mark.parametrize("method", METHODS)
async def test_a_drafter_that_takes_over_goes_on_from_the_states_that_come_then(head, method):
    verifiers, drafters = await elsewhere(head)
    drafters.append(await start_core(DrafterCore, methods(head), "d2"))
    tokens: list[int] = []
    async with cluster(verifiers, drafters, PATIENT, fallback=False) as running:
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


class Slow(NativeEngine):
    """Gives a test the time to do something to a session."""

    def forward(self, segments):
        time.sleep(0.01)
        return super().forward(segments)

    def forward_with_states(self, segments):
        time.sleep(0.01)
        return super().forward_with_states(segments)


class Silent(Slow):
    """Tells no states."""

    @property
    def capabilities(self):
        return super().capabilities - {Capability.HIDDEN_STATES}


async def a_verifier(name: str, states: bool):
    kind = Slow if states else Silent
    loaded = kind.from_model(target(), tiny_tokenizer(), ModelSpec("llama"))
    return await start_core(VerifierCore, loaded, name, loaded.bundle)


class Noting(EagleDrafter):
    """Notes the sessions that it was asked to draft for."""

    def __init__(self, *args, **named) -> None:
        super().__init__(*args, **named)
        self.opened: list[str] = []

    def places(self, key, opening):
        self.opened.append(key[1])
        return super().places(key, opening)

    def open(self, key, opening) -> None:
        self.opened.append(key[1])
        super().open(key, opening)


def noting(head) -> tuple[Noting, dict[str, Any]]:
    eagle, ngram = Noting(head), NgramDrafter()
    both = InformedDrafter(ngram, eagle, AheadRules(awaited=2), name="eagle")
    return eagle, {"eagle": eagle, "ngram": ngram, "ngram,eagle": both}


async def tokens_of(running, method, at, **sampling):
    """The text of a session, and what `at` did after so many tokens of it."""
    tokens: list[int] = []
    steps = sorted(at)
    stream = running.client.generate(
        PROMPT, temperature=0.0, max_tokens=LONG, ignore_eos=True, method=method, **sampling
    )
    async for event in stream:
        if isinstance(event, Chunk):
            tokens += event.token_ids
        while steps and len(tokens) >= steps[0]:
            await at[steps.pop(0)]()
    assert not steps
    return tokens


LONG = 200


@pytest.mark.parametrize("more", [{}, {"num_candidates": 1}], ids=["", "chains"])
@pytest.mark.parametrize("method", METHODS)
async def test_a_drafter_stays_where_no_states_are_told_and_uses_those_that_come_later(
    head, method, more
):
    verifiers = [await a_verifier("v1", True), await a_verifier("v2", False)]
    later = await a_verifier("v3", True)
    eagle, drafters = noting(head)
    fates: list[Fate] = []
    drafter = await start_core(
        DrafterCore, drafters, "d1", on_states=lambda fate, _: fates.append(fate)
    )
    told: list[int] = []
    async with cluster(verifiers, [drafter], PATIENT, fallback=False) as running:

        async def lose(number):
            told.append(fates.count(Fate.RECEIVED))
            await verifiers[number].kill()

        async def return_of_states():
            addresses = [verifier.address for verifier in (*verifiers, later)]
            running.pool.set_addresses(Role.VERIFIER, addresses)
            await running.pool.settle(60)
            await lose(1)

        tokens = await tokens_of(
            running, method, {10: partial(lose, 0), 40: return_of_states}, **more
        )
        told.append(fates.count(Fate.RECEIVED))
        later.stop.set()
        await later.task
    assert tokens == plain(PROMPT, LONG)
    before, without, after = told
    assert before > 0
    assert without - before <= 8, "what was under way"
    assert after > without
    assert len(eagle.opened) == 1


@pytest.mark.parametrize(("method", "drafts"), [("eagle", False), ("ngram,eagle", True)])
async def test_a_drafter_that_comes_where_no_states_are_told_drafts_with_what_needs_none(
    head, method, drafts
):
    verifiers = [await a_verifier("v1", True), await a_verifier("v2", False)]
    methods_of = [noting(head) for _ in range(2)]
    workers = [
        await start_core(DrafterCore, drafters, f"d{number}")
        for number, (_, drafters) in enumerate(methods_of)
    ]
    soon = Limits(drafter_backoff=0.01)
    async with cluster(verifiers, workers, PATIENT, fallback=False, limits=soon) as running:

        async def lose_both():
            await verifiers[0].kill()
            await next(own for own in workers if own.host.progress().sessions).kill()

        tokens = await tokens_of(running, method, {10: lose_both})
    assert tokens == plain(PROMPT, LONG)
    assert sum(bool(eagle.opened) for eagle, _ in methods_of) == (2 if drafts else 1)
