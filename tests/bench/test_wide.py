"""A wide model says what the small one says; its head reads the states that the small one had."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from bench.device.shapes import SHAPES
from bench.device.wide import wide_config, write_wide, write_wide_head
from services.contract.errors import StartError
from services.engine.eagle.layout import read_config
from services.training.head.head import fresh_head, shape_of
from services.training.head.stored import rounded, save_head
from services.training.target import read_target
from tests.models import tiny_model, tiny_model_folder, tiny_tokenizer

WIDE = {
    "hidden_size": 512,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", hidden_size=64, num_attention_heads=4, head_dim=16)


def test_a_wide_model_has_the_logits_of_the_small_one_and_the_sizes_of_its_shape(model, tmp_path):
    write_wide(model, tiny_tokenizer(), wide_config(model.config, WIDE), tmp_path)
    wide = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, trust_remote_code=False
    )
    ids = torch.arange(60)[None] * 37 % model.config.vocab_size
    with torch.inference_mode():
        small, large = model(ids).logits, wide(ids).logits
    assert float((small - large).abs().max()) < 1e-4 * float(small.abs().max())
    named = {name: tuple(one.shape) for name, one in wide.named_parameters()}
    assert named["model.layers.3.self_attn.q_proj.weight"] == (512, 512)
    assert named["model.layers.0.self_attn.k_proj.weight"] == (128, 512)
    assert named["model.layers.0.mlp.down_proj.weight"] == (512, 256)
    assert named["lm_head.weight"] == (model.config.vocab_size, 512)


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(StartError, match=r"layers of 64 numbers do not fit"):
        wide_config(model.config, WIDE | {"num_hidden_layers": 1})
    with pytest.raises(StartError, match=r"do not fit"):
        wide_config(model.config, WIDE | {"num_key_value_heads": 8})


def test_a_wide_head_maps_padded_states_to_what_the_head_made_of_them(model, tmp_path):
    ids = torch.arange(0, model.config.vocab_size, 2)
    head = fresh_head(shape_of(model.config, (0, 1), len(ids)), model, ids, seed=0)
    target = read_target(str(tiny_model_folder(tmp_path, "llama")))
    save_head(head, ids, target, tmp_path / "head", storage="int8", drafted=3, card={})
    write_wide_head(tmp_path / "head", model, 512, tmp_path / "wide")
    states = torch.randn(3, 2, 64)
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    padded = torch.nn.functional.pad(states, (0, 448)).flatten(1)
    codes, scales = rounded(head.fc.weight.detach())
    expected = states.flatten(1) @ (codes.float() * scales.float()).to(torch.bfloat16).float().T
    assert torch.allclose(padded @ wide["fc.weight"].float().T, expected, atol=1e-5)
    assert wide["embed_tokens.weight"].shape == (model.config.vocab_size, 64)
    assert not any(name.endswith("_scale") for name in wide)
    assert read_config(tmp_path / "wide").target_width == 512
    assert "paceline" not in json.loads((tmp_path / "wide" / "config.json").read_text())


def test_the_demo_model_fits_into_every_larger_shape():
    from transformers import LlamaConfig

    demo = LlamaConfig(**SHAPES["135m"])
    assert wide_config(demo, SHAPES["8b"]).head_dim == 128
