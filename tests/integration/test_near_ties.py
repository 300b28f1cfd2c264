"""Near-ties are counted once for each token of a text, at the verifier and on the spans."""

from typing import Any

import torch

from services.engine.native import NativeEngine
from services.engine.sampling import rounding
from services.engine.spec import ModelSpec
from services.runtime.telemetry import names
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions
from tests.integration.cluster import (
    PATIENT,
    PROMPT,
    cluster,
    plain_after,
    start_core,
    start_drafter,
    target,
)
from tests.models import tiny_tokenizer

TOKENS = 60


async def told(model: Any, **sampling: Any) -> tuple[Any, list[tuple[str, int, int]]]:
    """A text of a cluster with drafts, and what its verifier tells of its choices."""
    counted: list[tuple[str, int, int]] = []
    engine = NativeEngine.from_model(model, tiny_tokenizer(), ModelSpec("llama"))
    options = VerifierOptions(on_choices=lambda *of: counted.append(of))
    verifier = await start_core(VerifierCore, engine, "v1", engine.bundle, options=options)
    drafters = [await start_drafter(methods=("model",))]
    async with cluster([verifier], drafters, PATIENT) as running:
        text = await running.client.generate(
            PROMPT, max_tokens=TOKENS, ignore_eos=True, include_rounds=True, **sampling
        )
    return text, counted


def on_spans(receiver: Any) -> tuple[int, list[int]]:
    """What the session's span says, and those of its rounds."""
    [generate] = receiver.named(names.GENERATE.name)
    rounds = receiver.named(names.SPEC_ROUND.name)
    said = [span.attributes.get(names.NEAR_TIES) for span in rounds]
    return generate.attributes[names.NEAR_TIES], [near for near in said if near is not None]


async def test_near_ties_of_a_greedy_text_are_those_of_its_logits(receiver):
    text, counted = await told(target(), temperature=0.0)
    ids = tiny_tokenizer().encode(PROMPT)
    # The last verdict may bring more than the text takes.
    judged = plain_after(ids, sum(tokens for _, tokens, _ in counted))
    with torch.no_grad():
        logits = target()(torch.tensor([[*ids, *judged]])).logits[0, len(ids) - 1 : -1]
    first, second = logits.topk(2).values.T
    expected = int((first - second <= rounding("float32")).sum())
    assert list(text.token_ids) == judged[:TOKENS]
    whole, rounds = on_spans(receiver)
    assert whole == sum(rounds) == sum(near for _, _, near in counted) == expected
    assert {mode for mode, _, _ in counted} == {"greedy"}


async def test_coupled_texts_are_counted_and_those_where_chance_decides_are_not(receiver):
    model = target()
    _, coupled = await told(model, temperature=1.0, seed=7, rejection_sample_method="coupled")
    assert {mode for mode, _, _ in coupled} == {"coupled"}
    assert len(on_spans(receiver)[1]) == len(coupled)
    receiver.spans.clear()
    _, judged = await told(model, temperature=1.0, seed=7, rejection_sample_method="standard")
    assert judged == []
    assert on_spans(receiver) == (0, [])
