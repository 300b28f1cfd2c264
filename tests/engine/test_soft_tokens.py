"""Soft tokens: rows of their own in place of the embedding module's output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.cpus import told
from tests.engine.conftest import CLOSE, emptied, engine_with, feed, model_of, random_text
from tests.models import tiny_model

STEPS = 3


def soft_rows(arch: str) -> Tensor:
    """Rows with the scale of what the embedding module puts out."""
    module = model_of(arch).get_input_embeddings()
    scale = module(torch.arange(64)).std()
    generator = torch.Generator().manual_seed(5)
    return torch.randn(STEPS, module.weight.shape[-1], generator=generator) * scale


@pytest.fixture
def soft(arch: str) -> Iterator[NativeEngine]:
    with emptied(engine_with(model_of(arch))) as engine:
        engine.give_soft_tokens(soft_rows(arch))
        yield engine


@torch.inference_mode()
def stock_logits(arch: str, text: list[int], rows: Tensor) -> Tensor:
    """Transformers' own forward over the text's embeddings and these rows."""
    model = model_of(arch)
    embeds = torch.cat((model.get_input_embeddings()(torch.tensor([text])), rows[None]), dim=1)
    return model(inputs_embeds=embeds, use_cache=False).logits[0].float()


def test_soft_tokens_give_what_their_embeddings_give_in_transformers(arch, soft):
    text, rows = random_text(20), soft_rows(arch)
    cache = soft.new_cache(40)
    feed(soft, cache, text[:15])
    ours = feed(soft, cache, [*text[15:], *soft.soft_ids])
    torch.testing.assert_close(ours, stock_logits(arch, text, rows)[15:], **CLOSE)
    assert cache.length == len(text) + STEPS


def test_ordinary_tokens_are_the_same_bit_for_bit_beside_and_without_soft_ones(arch, soft):
    text = random_text(20)
    plain, b, c = engine_with(model_of(arch)), soft.new_cache(40), soft.new_cache(40)
    expected = feed(plain, plain.new_cache(40), text)
    assert torch.equal(feed(soft, b, text), expected)
    beside = feed(soft, c, [*text, *soft.soft_ids])[: len(text)]
    torch.testing.assert_close(beside, expected, **CLOSE)


def test_sessions_with_and_without_soft_tokens_share_a_step(arch, soft):
    one, other = random_text(9), random_text(14)
    a, b = soft.new_cache(40), soft.new_cache(40)
    first, second = soft.forward([Segment(a, [*one, *soft.soft_ids[:2]]), Segment(b, other)])
    expected = stock_logits(arch, one, soft_rows(arch)[:2])
    torch.testing.assert_close(first, expected, **CLOSE)
    torch.testing.assert_close(second, stock_logits(arch, other, soft_rows(arch)[:0]), **CLOSE)


def test_packed_half_precision_weights_take_them_too(monkeypatch):
    told(monkeypatch, bfloat16=False)
    rows = soft_rows("llama")
    whole = NativeEngine.from_model(model_of("llama"))
    model = tiny_model("llama").to(torch.bfloat16)
    packed = NativeEngine.from_model(model, spec=ModelSpec("llama", dtype="bfloat16"))
    text, logits = random_text(12), []
    for engine in (whole, packed):
        engine.give_soft_tokens(rows)
        cache = engine.new_cache(40)
        logits.append(feed(engine, cache, [*text, *engine.soft_ids]))
    same = torch.nn.functional.cosine_similarity(*logits)
    assert float(same.min()) > 0.99


def test_ids_beyond_the_soft_ones_and_soft_ids_without_rows_are_refused():
    engine = NativeEngine.from_model(model_of("llama"))
    cache = engine.new_cache(8)
    with pytest.raises(ValueError, match="token ids must be within"):
        feed(engine, cache, [5, 320])
    engine.give_soft_tokens(soft_rows("llama"))
    assert engine.soft_ids == range(320, 323)
    with pytest.raises(ValueError, match="token ids must be within"):
        feed(engine, cache, [5, 323])


def test_rows_of_another_width_are_refused_with_both_figures():
    engine = NativeEngine.from_model(model_of("llama"))
    with pytest.raises(StartError, match=r"are \[3, 65\], but the model's are 64 wide"):
        engine.give_soft_tokens(torch.zeros(3, 65))
