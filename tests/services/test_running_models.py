"""A verifier that runs its sessions on real (tiny) models, against transformers' own generate."""

import random

import pytest
import torch

from services.contract.types import DraftTree
from services.contract.worker_messages import EndSession
from services.engine.native import NativeEngine
from tests.models import tiny_model
from tests.services.running_bench import COUPLED, GREEDY, Running, draft, start, text_of

PROMPTS = [tuple(10 + (7 * i * j + i) % 300 for j in range(5 + 9 * i)) for i in range(5)]
LENGTH = 24


@pytest.fixture(scope="module", params=["llama", "qwen2", "mistral", "gemma3_text", "gpt2"])
def model(request):
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def engine(model):
    return NativeEngine.from_model(model)


def generated(model, prompt, count=LENGTH):
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    with torch.inference_mode():
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options
        )
    return tuple(text[0, len(prompt) :].tolist())


def stock_law(model):
    """The logits after a text by a plain forward of transformers."""

    def logits(text):
        with torch.inference_mode():
            return model(torch.tensor([text])).logits[0, -1].float()

    return logits


def wrongly(text, rng, window=8):
    """A chain or a tree that holds the target's text, with some of it spoiled."""

    def drafted(output):
        size = rng.randrange(window + 1)
        tail = text[len(output) : len(output) + size]
        if rng.random() < 0.5:
            return DraftTree(tuple(t if rng.random() < 0.85 else t ^ 1 for t in tail))
        parents, tokens, at = [], [], -1
        for token in tail[: window // 2]:
            parents += [at, at]
            tokens += [token ^ 1, token]
            at = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents) or None)

    return drafted


def nothing(_):
    return DraftTree()


def decode(engine, drafts):
    """The outputs of sessions that run together; `drafts`: what of each output is drafted."""
    table = Running(engine, max_step_tokens=24)
    table.give(*drafts)
    accepted = 0
    for number in range(400):
        for command, drafted in drafts.items():
            said = table.output(command.handle)
            if len(tree := drafted(said)):
                table.give(draft((), said, number, command.handle, tree=tree))
        if not table.core.step():
            break
        accepted += sum(row.accepted for row in table.rows_of(table.taken()))
    table.give(*[EndSession(command.handle) for command in drafts])
    assert engine.kv_tokens_used == 0
    assert accepted or set(drafts.values()) == {nothing}
    return [table.output(command.handle) for command in drafts]


def test_greedy_text_is_that_of_generate_for_any_draft(model, engine):
    for i, prompt in enumerate(PROMPTS):
        text = generated(model, prompt)
        for drafted in (nothing, wrongly(text, random.Random(i))):
            command = start(prompt=prompt, max_tokens=LENGTH)
            assert decode(engine, {command: drafted}) == [text]


def test_coupled_text_is_that_of_the_target_alone_for_any_draft(model, engine):
    for i, prompt in enumerate(PROMPTS):
        law = {"temperature": 0.8, "top_p": 0.95, "top_k": 50} if i % 2 else {}
        command = start(mode=COUPLED, prompt=prompt, seed=i, max_tokens=LENGTH, **law)
        text = text_of(command, LENGTH, stock_law(model))
        for seed in range(3):
            assert decode(engine, {command: wrongly(text, random.Random(seed))}) == [text]


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_sessions_that_step_together_give_the_text_they_give_alone(model, engine, mode):
    """Everybody's prompt at once: shares of prompts are read beside drafts."""
    commands = [start(i, mode, prompt=PROMPTS[i % 5], seed=i, max_tokens=LENGTH) for i in range(8)]
    texts = [text_of(command, LENGTH, stock_law(model)) for command in commands]
    drafts = [wrongly(text, random.Random(i)) for i, text in enumerate(texts)]
    assert decode(engine, dict(zip(commands, drafts, strict=True))) == texts
