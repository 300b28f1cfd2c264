"""The verifier's core on real (tiny) models, against transformers' own generate."""

import random

import pytest
import torch

from services.contract.types import CloseVerify
from services.engine.native import NativeEngine
from tests.models import tiny_model
from tests.services.verifier_bench import COUPLED, GREEDY, Table, block, opening, target_text

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
    return text[0, len(prompt) :].tolist()


def stock_law(model):
    """The logits after a text by a plain forward of transformers."""

    def logits(text):
        with torch.inference_mode():
            return model(torch.tensor([text])).logits[0, -1].float()

    return logits


def wrongly(text, rng, window=8):
    """A chain or a tree that holds the target's text, with some of it spoiled."""

    def draft(output):
        size = rng.randrange(window + 1)
        tail = list(text[len(output) : len(output) + size])
        if rng.random() < 0.5:
            return [token if rng.random() < 0.85 else token ^ 1 for token in tail], None
        parents, tokens, at = [], [], -1
        for token in tail[: window // 2]:
            parents += [at, at]
            tokens += [token ^ 1, token]
            at = len(tokens) - 1
        return tokens, tuple(parents)

    return draft


def test_greedy_text_is_that_of_generate_for_any_draft(model, engine):
    for i, prompt in enumerate(PROMPTS):
        text = generated(model, prompt)
        for draft in (lambda output: ((), None), wrongly(text, random.Random(i))):
            command = opening(prompt=prompt, max_tokens=LENGTH)
            assert Table(engine).decode(command, draft, LENGTH) == text
    assert engine.kv_tokens_used == 0


def test_coupled_text_is_that_of_the_target_alone_for_any_draft(model, engine):
    for i, prompt in enumerate(PROMPTS):
        law = {"temperature": 0.8, "top_p": 0.95, "top_k": 50} if i % 2 else {}
        command = opening(mode=COUPLED, prompt=prompt, seed=i, max_tokens=LENGTH, **law)
        text = target_text(command, LENGTH, stock_law(model))
        for seed in range(3):
            draft = wrongly(text, random.Random(seed))
            assert Table(engine).decode(command, draft, LENGTH) == text


@pytest.mark.parametrize("mode", [GREEDY, COUPLED])
def test_sessions_that_step_together_give_the_text_they_give_alone(model, engine, mode):
    commands = [
        opening(f"s{i}", mode, prompt=PROMPTS[i % 5], seed=i, max_tokens=LENGTH) for i in range(8)
    ]
    texts = [target_text(command, LENGTH, stock_law(model)) for command in commands]
    table = Table(engine, max_step_tokens=24)
    outputs = [[] for _ in commands]
    drafts = [wrongly(text, random.Random(i)) for i, text in enumerate(texts)]
    # Everybody's prompt and first block at once: prefill chunks run beside blocks.
    table.give(*commands)
    for round_ in range(1, LENGTH + 1):
        for i, (output, draft) in enumerate(zip(outputs, drafts, strict=True)):
            if len(output) < LENGTH:
                tokens, parents = draft(output)
                table.give(block(round_, len(output), tokens, parents, session=f"s{i}"))
        for event in table.run():
            outputs[int(event.session[1:])] += getattr(event, "token_ids", ())
    assert [output[:LENGTH] for output in outputs] == texts
    table.give(*[CloseVerify(command.session) for command in commands])


def test_chained_blocks_give_the_text_of_generate(model, engine):
    table = Table(engine)
    text = generated(model, PROMPTS[1])
    table.opened(prompt=PROMPTS[1], max_tokens=LENGTH)
    asks = [
        block(i + 1, 4 * i, text[4 * i : 4 * i + 4], extends_round=i, want_bonus=i % 3 == 1)
        for i in range(LENGTH // 4)
    ]
    output = []
    for verdict in table.run(*asks):
        assert verdict.base_len == len(output)
        output += verdict.token_ids
    assert output[:LENGTH] == text
    table.give(CloseVerify("s"))
    assert engine.kv_tokens_used == 0
