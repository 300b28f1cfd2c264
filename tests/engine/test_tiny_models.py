"""The tiny models that other tests start processes on are fit for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import model_of, random_text, stock_greedy, stock_logits
from tests.models import SUPPORTED, VOCAB_SIZE, tiny_model, tiny_tokenizer


def test_every_id_of_a_tiny_model_is_a_token():
    assert len(tiny_tokenizer()) == VOCAB_SIZE


def test_the_tokenizer_is_the_same_in_every_process():
    script = (
        "from tests.models import tiny_tokenizer; import hashlib;"
        "print(hashlib.sha256(tiny_tokenizer().backend_tokenizer.to_str().encode()).hexdigest())"
    )
    root = Path(__file__).parents[2]
    runs = {subprocess.check_output([sys.executable, "-c", script], cwd=root) for _ in range(2)}
    assert len(runs) == 1


@pytest.mark.parametrize("arch", SUPPORTED)
def test_greedy_text_varies_and_is_not_nearly_tied(arch):
    text = random_text(20)
    assert len(set(stock_greedy(arch, text, 12))) >= 4
    best = stock_logits(arch, text).topk(2, -1).values
    assert float((best[:, 0] - best[:, 1]).median()) > 0.1


def test_the_seed_decides_the_weights():
    same, other = tiny_model("llama"), tiny_model("llama", seed=1)
    assert same.lm_head.weight.equal(model_of("llama").lm_head.weight)
    assert not same.lm_head.weight.equal(other.lm_head.weight)
