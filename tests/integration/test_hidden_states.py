"""Hidden states of the target at its drafter: those of transformers, for the text that came out."""

import asyncio
from dataclasses import dataclass, field

import pytest
import torch

from orchestrator.steering.config import Limits
from services.contract.states import StateShape
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.lending import Lending
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    cluster,
    engine,
    serve_beside,
    start_core,
    target,
    verifier_core,
)
from tests.integration.test_equal_to_plain_decoding import TOKENS, coupled, greedy
from tests.models import tiny_tokenizer
from tests.waiting import until

LAYERS = (0, 1)


@dataclass
class Heard:
    """What a drafter was given of one session, by position, each row as often as it came."""

    rows: dict[int, torch.Tensor] = field(default_factory=dict)

    def take(self, position: int, rows: torch.Tensor) -> None:
        for number, row in enumerate(rows, position):
            self.rows[number] = row

    def check(self, text: list[int], first: int = 0) -> None:
        """Without a gap from `first` to the last commit, and as transformers says."""
        last = max(self.rows)
        assert sorted(self.rows) == list(range(first, last + 1))
        assert last >= len(text) - 14, "the last commits are not told"
        with torch.no_grad():
            given = target()(torch.tensor([text]), output_hidden_states=True).hidden_states
        expected = torch.cat([given[layer][0] for layer in LAYERS], -1)[first : last + 1]
        found = torch.stack([self.rows[number] for number in range(first, last + 1)])
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-3)


class Listening:
    """A drafting method that notes the states it is given, and drafts as another one."""

    def __init__(self, inner):
        self._inner = inner
        self.needed_states = StateShape(LAYERS, len(LAYERS) * target().config.hidden_size)
        self.heard: dict[str, Heard] = {}

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def anchor(self, key, position, states):
        rows = torch.frombuffer(bytearray(states), dtype=torch.bfloat16).float()
        heard = self.heard.setdefault(key[1], Heard())
        heard.take(position, rows.view(-1, self.needed_states.width))

    @property
    def only(self) -> Heard:
        [heard] = self.heard.values()
        self.heard = {}
        return heard


def model(seed=0):
    """Another model than the target, unless its seed is the same: its drafts are rejected."""
    return Listening(ModelDrafter(engine("llama", seed)))


async def verifier():
    loaded = engine()
    return await start_core(verifier_core, loaded, "v1", loaded.bundle)


async def drafter(method, name="d1"):
    return await start_core(HypothesisCore, {"eagle": method}, name)


async def text_of(running, ask=greedy, **more):
    run = await ask(running, method="eagle", **more)
    assert run.speculation.num_draft_tokens > 0
    return [*tiny_tokenizer().encode(PROMPT), *run.token_ids]


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_candidates": 4},
        {"ask": coupled},
        {"ask": coupled, "rejection_sample_method": "standard"},
        {"ask": coupled, "rejection_sample_method": "block"},
    ],
    ids=["chains", "trees", "coupled", "standard", "block"],
)
async def test_they_are_those_of_the_text_that_came_out(seed, more):
    method = model(seed)
    async with cluster([await verifier()], [await drafter(method)], PATIENT) as running:
        text = await text_of(running, **more)
        method.only.check(text)


async def test_steps_that_wait_for_no_draft_tell_them_once():
    method = model()
    async with cluster(
        [await verifier()], [await drafter(method)], PATIENT, pacing="eager"
    ) as running:
        # Long, so that the drafter gets ahead of a target as quick as this one.
        standard = {"rejection_sample_method": "standard", "max_tokens": 300}
        text = await text_of(running, ask=coupled, **standard)
        method.only.check(text)


async def test_after_a_crash_of_the_drafter_the_next_one_hears_the_rest():
    methods = model(3), model(3)
    workers = [await drafter(method, f"d{number}") for number, method in enumerate(methods)]
    soon = Limits(drafter_backoff=0.01)
    async with cluster([await verifier()], workers, PATIENT, limits=soon) as running:
        asked = asyncio.create_task(text_of(running, tokens=300))
        await until(lambda: any(method.heard for method in methods))
        first = 0 if methods[0].heard else 1
        await until(lambda: max(next(iter(methods[first].heard.values())).rows) > 30)
        await workers[first].kill()
        text = await asked
    heard = methods[1 - first].only
    assert min(heard.rows) > len(tiny_tokenizer().encode(PROMPT)) - 1
    heard.check(text, min(heard.rows))


@pytest.mark.parametrize("ask", [{}, {"ask": coupled, "rejection_sample_method": "standard"}])
async def test_beside_its_verifier_a_drafter_hears_them_and_the_wire_carries_none(ask):
    method, wire = Listening(NgramDrafter()), []
    verifier = await serve_beside(engine(), {"eagle": method}, Lending(), heard=wire.append)
    async with cluster([verifier], [], PATIENT) as running:
        text = await text_of(running, logit_bias={7: 100.0}, **ask)
        method.only.check(text)
    assert not any(getattr(event, "states", b"") for event in wire)


async def test_a_drafter_that_no_verifier_can_serve_is_left_alone_and_the_text_comes_all_the_same(
    caplog,
):
    method = model()
    method.needed_states = StateShape((0, 99), 8)
    async with cluster([await verifier()], [await drafter(method)], PATIENT) as running:
        for _ in range(2):
            run = await greedy(running, method="eagle")
            assert len(run.token_ids) == TOKENS
            assert run.speculation.num_draft_tokens == 0
    assert method.heard == {}
    assert caplog.text.count("no verifier tells them") == 1
