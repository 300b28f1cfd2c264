"""The check at load: our steps against vLLM's own, on the path that serves.

vLLM's scheduler reads a few random texts once and says how likely each token's alternatives were.
Then our steps get the same texts in pieces: beside each other, across a block's end, with a wrong
continuation that is rolled back, and as a tree of two continuations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.port import Segment
from services.engine.vllm.engine import VllmEngine
from services.engine.vllm.extension import Loaded

TOLERANCES = {"float32": 1e-3, "float16": 1e-1, "bfloat16": 4e-1}
"""Largest accepted difference of a row's best log-probabilities, in units of the logits' spread."""
BEST = 5
BEYOND = 9
"""Tokens of a text beyond the first block."""


Told = list[list[dict[int, float]]]
"""Of each text, of each of its tokens but the last, what may follow: log-probabilities by id."""


def texts_length(loaded: Loaded) -> int:
    """How many tokens the texts have."""
    return min(loaded.context - 1, loaded.block_size + BEYOND)


def ask(llm: Any, vocab_size: int, length: int) -> Told:
    """What vLLM itself says of the texts. All ranks have to ask together."""
    return [_their_rows(llm, text) for text in _texts(vocab_size, length)]


def check(engine: VllmEngine, told: Told) -> None:
    """Raise StartError where our rows are not the model's."""
    ours = _our_rows(engine, _texts(engine.vocab_size, len(told[0]) + 1))
    worst = max(_difference(*pair) for pair in zip(ours, told, strict=True))
    if not worst <= TOLERANCES[engine.dtype]:
        raise StartError(
            f"{engine.model_id}: self-check failed, steps differ from vLLM's own by {worst:.2e} "
            f"(tolerance {TOLERANCES[engine.dtype]:.0e})"
        )


def _texts(vocab_size: int, length: int) -> list[list[int]]:
    """Three texts; the last two share all but their last tokens."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, vocab_size, (3, length), generator=generator)
    shared = length - BEYOND // 2
    texts[2, :shared] = texts[1, :shared]
    texts[2, shared] = (texts[1, shared] + 1) % vocab_size
    found: list[list[int]] = texts.tolist()
    return found


def _their_rows(llm: Any, text: Sequence[int]) -> list[dict[int, float]]:
    """Log-probabilities of the best tokens after each token of a text but the last."""
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=BEST, detokenize=False)
    [answer] = llm.generate({"prompt_token_ids": list(text)}, asked, use_tqdm=False)
    return [
        {token: told.logprob for token, told in row.items()} for row in answer.prompt_logprobs[1:]
    ]


def _our_rows(engine: VllmEngine, texts: Sequence[list[int]]) -> list[Tensor]:
    """Logits after each token of the texts but the last, by pieces."""
    text, left, right = texts
    shared = next(i for i, pair in enumerate(zip(left, right, strict=True)) if len({*pair}) > 1)
    half, tail = len(text) // 2, len(text) - shared
    first, second = engine.new_cache(2 * len(text)), engine.new_cache(2 * len(text))
    start, trunk = engine.forward([Segment(first, text[:half]), Segment(second, left[:shared])])
    engine.forward([Segment(first, right[: len(text) - half], logits_from=len(text) - half)])
    first.rollback(half)
    parents = [-1, *range(tail - 1), -1, *range(tail, 2 * tail - 1)]
    tree = Segment(second, left[shared:] + right[shared:], parents)
    rest, branches = engine.forward([Segment(first, text[half:]), tree])
    second.keep_path(shared, range(tail, 2 * tail - 1))
    # The kept path is not the one that the blocks hold.
    (again,) = engine.forward([Segment(second, right[-1:])])
    first.free()
    second.free()
    lefts, rights = branches[:tail], torch.cat((branches[tail:-1], again))
    return [torch.cat(rows) for rows in ((start, rest), (trunk, lefts), (trunk, rights))]


def _difference(ours: Tensor, theirs: Sequence[dict[int, float]]) -> float:
    laws, spread = ours.log_softmax(-1), ours.std(-1).clamp_min(1e-9)
    worst = 0.0
    for law, wide, told in zip(laws, spread, theirs, strict=False):
        ids, logs = torch.tensor(list(told)), torch.tensor(list(told.values()))
        own = law[ids.to(law.device)].cpu()
        worst = max(worst, float((own - logs).abs().max() / wide.cpu()))
    return float("inf") if bool(ours.isnan().any()) else worst
