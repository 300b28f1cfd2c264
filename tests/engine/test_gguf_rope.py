"""Positions that a GGUF file stretches are stretched as transformers does it by a configuration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from services.contract.errors import StartError
from services.engine.checkpoint.gguf_model import read_config
from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.gguf_files import Shape, gguf_file

pytest.importorskip("gguf")
THETA, WIDTH = 1e6, 32
TEXT = torch.arange(200)[None] % 380


def divisors(factor=8.0):
    """As the format's converter writes them (llama.cpp, conversion/llama.py)."""
    found = []
    for frequency in 1.0 / (THETA ** (np.arange(0, WIDTH, 2) / WIDTH)):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            found.append(1.0)
        elif wavelength > 8192:
            found.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.asarray(found, np.float32)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
LINEAR = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
STRETCHED = {
    "llama3": ({"more": {"rope_freqs.weight": divisors()}}, LLAMA3),
    "linear": ({"said": LINEAR}, {"rope_type": "linear", "factor": 4.0}),
    "yarn": ({"said": YARN}, {"rope_type": "yarn", "factor": 4.0}),
}


def logits_of(model):
    with torch.no_grad():
        return model(TEXT).logits[0]


@pytest.mark.parametrize("kind", STRETCHED)
def test_stretched_positions_give_the_logits_of_the_same_model_in_a_folder(tmp_path, kind):
    from transformers import LlamaConfig, LlamaForCausalLM

    written, rope = STRETCHED[kind]
    file = gguf_file(tmp_path / "m.gguf", kind="F32", **written)
    plain = load_model(ModelSpec(str(gguf_file(tmp_path / "plain.gguf", kind="F32")))).model
    settings = {**plain.config.to_dict(), "rope_parameters": {**rope, "rope_theta": THETA}}
    stock = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    stock.load_state_dict(plain.state_dict())
    expected = logits_of(stock)
    assert (logits_of(plain) - expected).abs().max() > 1e-2
    spec = ModelSpec(str(file), threads=1, cache_dir=tmp_path / "cache")
    torch.testing.assert_close(logits_of(load_model(spec).model), expected, rtol=1e-4, atol=1e-4)
    engine = NativeEngine.load(spec)
    [rows] = engine.forward([Segment(engine.new_cache(200), TEXT[0].tolist())])
    torch.testing.assert_close(rows, expected, rtol=1e-3, atol=1e-3)


def test_divisors_that_stretch_nothing_change_nothing(tmp_path):
    more = {"rope_freqs.weight": np.ones(WIDTH // 2, np.float32)}
    rope = read_config(gguf_file(tmp_path / "m.gguf", more=more)).rope_parameters
    assert (rope["rope_type"], rope["rope_theta"]) == ("default", THETA)


def test_phi_3_has_divisors_for_short_and_for_long_texts(tmp_path):
    more = {f"rope_factors_{kind}.weight": divisors(by) for kind, by in (("short", 1), ("long", 8))}
    said = {"phi3.rope.scaling.original_context_length": 256}
    config = read_config(
        gguf_file(tmp_path / "m.gguf", "phi3", Shape(width=128), more=more, said=said)
    )
    rope = config.rope_parameters
    assert rope["rope_type"] == "longrope"
    assert rope["long_factor"] == divisors(8).tolist()
    assert rope["short_factor"] == divisors(1).tolist()
    assert config.original_max_position_embeddings == 256


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"more": {"rope_freqs.weight": divisors()[::-1].copy()}}, "not as in Llama 3"),
        ({"more": {"rope_freqs.weight": divisors() * np.nan}}, "not as in Llama 3"),
        ({"more": {"rope_freqs.weight": np.ones(5000, np.float32)}}, "no list of at most 4096"),
        ({"said": {**YARN, "llama.rope.scaling.type": "warp"}}, "rope.scaling.type is warp"),
    ],
)
def test_what_nobody_here_can_stretch_is_refused(tmp_path, written, told):
    file = gguf_file(tmp_path / "m.gguf", **written)
    with pytest.raises(StartError, match=told):
        load_model(ModelSpec(str(file), cache_dir=tmp_path / "cache"))
