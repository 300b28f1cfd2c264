"""The stand-in draft model: the target with layers left out."""

import pytest
import torch

from bench.tokens import source_folder
from research.thinned_draft import laws, overlap, save, thin, without, written
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer

PROMPTS = ("the small drafter", "rides ahead of the large verifier")


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", num_hidden_layers=4)


@pytest.fixture(scope="module")
def texts(model):
    return written(model, tiny_tokenizer(), PROMPTS, 6)


def test_the_target_overlaps_itself_wholly_and_without_a_layer_less(model, texts):
    targets = [laws(model, text) for text in texts]
    assert overlap(model, texts, targets) == pytest.approx(1.0, abs=1e-5)
    with without(model, [1]):
        assert overlap(model, texts, targets) < 0.99
    assert len(model.model.layers) == 4


def test_laws_are_those_of_the_answer_s_own_tokens(model, texts):
    for text in texts:
        law = laws(model, text)
        assert len(law) == text.token_ids.shape[1] - text.start
        assert law.sum(-1) == pytest.approx(torch.ones(len(law)).numpy(), abs=1e-4)
        whole = torch.softmax(model(text.token_ids).logits[0], dim=-1)
        assert torch.allclose(law[0], whole[text.start - 1], atol=1e-5)


def test_the_layer_that_costs_least_leaves_first_and_none_leaves_twice(model, texts):
    targets = [laws(model, text) for text in texts]
    steps = list(thin(model, texts, 3))
    first = {}
    for layer in range(4):
        with without(model, [layer]):
            first[layer] = overlap(model, texts, targets)
    assert steps[0][0] == max(first, key=first.__getitem__)
    assert len({layer for layer, _ in steps}) == 3


def test_what_is_saved_loads_as_a_draft_model_with_the_target_s_tokenizer(tmp_path):
    source = tiny_model_folder(tmp_path)
    model = tiny_model("llama")
    save(model, [0], source_folder(str(source)), tmp_path / "thin")
    target, draft = (
        NativeEngine.load(ModelSpec(str(folder))) for folder in (source, tmp_path / "thin")
    )
    assert draft.bundle is not None
    assert target.bundle is not None
    assert draft.bundle.fingerprint == target.bundle.fingerprint
    [logits] = draft.forward([Segment(draft.new_cache(8), [5, 6, 7])])
    with without(model, [0]), torch.inference_mode():
        expected = model(torch.tensor([[5, 6, 7]]), use_cache=False).logits[0]
    assert torch.allclose(logits, expected, atol=1e-4)
