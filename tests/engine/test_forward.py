"""Ragged steps give what transformers gives, on every architecture."""

from __future__ import annotations

import pytest
import torch

from services.engine.port import Segment
from tests.engine.conftest import CLOSE, feed, next_token, random_text, stock_greedy, stock_logits

PROMPTS = [random_text(5), random_text(17), random_text(1), random_text(30)]


def test_greedy_text_varies_and_is_not_nearly_tied(arch):
    """Or the tests on tiny models would not see much."""
    text = random_text(20)
    assert len(set(stock_greedy(arch, text, 12))) >= 4
    best = stock_logits(arch, text).topk(2, -1).values
    assert float((best[:, 0] - best[:, 1]).median()) > 0.1


def test_interleaved_sessions_decode_as_transformers_generates(arch, engine):
    caches = [engine.new_cache(64) for _ in PROMPTS]
    pending = [list(prompt) for prompt in PROMPTS]
    outputs = [[] for _ in PROMPTS]
    for step in range(16):
        # Sessions join one step after another and take turns sitting one out.
        ready = [i for i in range(len(PROMPTS)) if (step >= i and (step + i) % 5) or step > 12]
        rows = engine.forward(
            [Segment(caches[i], pending[i], logits_from=len(pending[i]) - 1) for i in ready]
        )
        for i, logits in zip(ready, rows, strict=True):
            outputs[i].append(next_token(logits))
            pending[i] = outputs[i][-1:]
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output == stock_greedy(arch, prompt, len(output))


@pytest.mark.parametrize("chunk", [1, 3, 7, 16])
def test_chunked_prefill_equals_one_pass(arch, engine, chunk):
    text = random_text(33)
    cache = engine.new_cache(40)
    rows = [feed(engine, cache, text[at : at + chunk]) for at in range(0, len(text), chunk)]
    torch.testing.assert_close(torch.cat(rows), stock_logits(arch, text), **CLOSE)


def test_logits_are_float32(llama):
    cache = llama.new_cache(4)
    assert feed(llama, cache, [5]).dtype is torch.float32


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ({"token_ids": []}, "at least one token"),
        ({"token_ids": [1] * 9}, "exceed the reserved 8"),
        ({"token_ids": [320]}, "token ids must be within"),
        ({"token_ids": [-1]}, "token ids must be within"),
        ({"token_ids": [1], "logits_from": 2}, "logits_from"),
        ({"token_ids": [1, 2], "parents": [-1]}, "1 parents for 2 tokens"),
        ({"token_ids": [1, 2], "parents": [-1, 1]}, "before their children"),
    ],
)
def test_a_bad_segment_changes_nothing(llama, segment, message):
    good, bad = llama.new_cache(8), llama.new_cache(8)
    with pytest.raises(ValueError, match=message):
        llama.forward([Segment(good, [1, 2]), Segment(bad, **segment)])
    assert good.length == bad.length == 0


def test_a_position_beyond_the_context_is_refused(llama):
    cache = llama.new_cache(600)
    with pytest.raises(ValueError, match="beyond the context of 512"):
        feed(llama, cache, random_text(513))
