"""Rows inserted at many places of a text give what they give each alone, when served."""

from __future__ import annotations

import pytest
import torch

from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.training.lookahead.insertion import look_ahead
from tests.engine.conftest import CLOSE, model_of, random_text
from tests.models import SUPPORTED

PLACES = (1, 5, 6, 18, 24)


def embeddings_of(arch: str) -> torch.Tensor:
    module = model_of(arch).get_input_embeddings()
    generator = torch.Generator().manual_seed(1)
    scale = module(torch.arange(64)).std()
    return torch.randn(3, module.weight.shape[-1], generator=generator) * scale.detach()


@pytest.mark.parametrize("arch", SUPPORTED)
def test_all_places_of_a_text_at_once_equal_one_served_forward_for_each(arch: str) -> None:
    engine = NativeEngine.from_model(model_of(arch), spec=ModelSpec(arch, kv_capacity_tokens=4096))
    rows, text = embeddings_of(arch), random_text(24)
    logits = look_ahead(engine.model, rows, text, torch.tensor(PLACES))
    engine.give_soft_tokens(rows)
    for place, found in zip(PLACES, logits.split(3), strict=True):
        cache = engine.new_cache(40)
        tokens = [*text[:place], *engine.soft_ids]
        [expected] = engine.forward([Segment(cache, tokens, logits_from=place)])
        torch.testing.assert_close(found, expected, **CLOSE)
        cache.free()


def test_gradients_reach_the_embeddings_alone_and_are_those_of_one_place_after_another() -> None:
    engine = NativeEngine.from_model(model_of("mistral"), spec=ModelSpec("mistral"))
    text = random_text(24)
    rows = embeddings_of("mistral").requires_grad_()
    look_ahead(engine.model, rows, text, torch.tensor(PLACES)).square().sum().backward()
    together, rows.grad = rows.grad.clone(), None
    for place in PLACES:
        alone = look_ahead(engine.model, rows, text[:place], torch.tensor([place]))
        alone.square().sum().backward()
    torch.testing.assert_close(together, rows.grad, rtol=1e-3, atol=1e-2)
    assert all(parameter.grad is None for parameter in engine.model.parameters())
