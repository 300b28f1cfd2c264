"""Plain reckoning of what a session may say: transformers' model, and the parameters' formulas.

One row at a time in float64; it knows nothing of drafts, blocks or batches.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from paceline import Generation

from services.contract.types import FormatMarker, ResolvedSampling, ResponseFormat
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.checkpoint.bundle import make_bundle
from services.engine.native import NativeEngine
from services.engine.noise import exponentials
from services.engine.spec import ModelSpec
from services.engine.structure import Structures
from tests.integration.cluster import (
    PROMPT,
    Cluster,
    Worker,
    start_core,
    target,
)
from tests.models import VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.proof.goodness_of_fit import transform
from tests.proof.two_token_models import between

TOKENS = 32


def resolved(options: dict[str, Any]) -> ResolvedSampling:
    """The parameters as values, with the neutral ones filled in."""
    given = dict(options)
    biases, words = given.pop("logit_bias", {}), given.pop("bad_words", ())
    allowed = tuple(given.pop("allowed_token_ids", ()))
    return ResolvedSampling(
        **given,
        logit_bias=tuple(biases.items()),
        allowed_token_ids=allowed,
        bad_words=tuple(chain.from_iterable(map(sequences_of, words))),
    )


def sequences_of(word: str) -> list[tuple[int, ...]]:
    """The tokens of a bad word; behind a space, too, if as many that begin otherwise."""
    bare, spaced = (tuple(prompt_ids(prefix + word)) for prefix in ("", " "))
    inner = len(spaced) == len(bare) and spaced[0] != bare[0]
    return [bare, spaced] if inner else [bare]


def scores_at(logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], s: Any):
    """Scores before any law, [V] float64; `output` comes before this row."""
    scores = logits.astype(np.float64)
    for token, bias in s.logit_bias:
        scores[token] += bias
    seen = [*{*prompt, *output}]
    divided = np.where(scores > 0, scores / s.repetition_penalty, scores * s.repetition_penalty)
    scores[seen] = divided[seen]
    counts = np.bincount(np.array(output, dtype=int), minlength=len(scores))
    scores -= s.frequency_penalty * counts + s.presence_penalty * (counts > 0)
    if len(output) < s.min_tokens:
        scores[list(s.stop_token_ids)] = -np.inf
    if s.allowed_token_ids:
        scores[np.setdiff1d(np.arange(len(scores)), s.allowed_token_ids)] = -np.inf
    for *before, last in s.bad_words:
        if list(output[len(output) - len(before) :]) == before:
            scores[last] = -np.inf
    if s.response_format is not None:
        scores[~allowed_after(output, s.response_format)] = -np.inf
    return scores


def allowed_after(output: Sequence[int], wanted: ResponseFormat) -> np.ndarray:
    """The mask behind an output that is read once from its first token, bool [V].

    Where it begins is looked up in the whole text, again for each position.
    """
    begun = begins(output, wanted.start)
    if begun is None:
        return np.ones(VOCAB_SIZE, dtype=bool)
    matcher = structures().matcher(replace(wanted, start=None))
    assert matcher.extend(output[begun:])
    mask = matcher.mask(())
    assert mask is not None
    return mask


def begins(output: Sequence[int], start: FormatMarker | None) -> int | None:
    """How many tokens of an output come before its format; None: all of them so far."""
    if start is None:
        return 0
    texts = (tiny_tokenizer().decode(output[:size]) for size in range(len(output) + 1))
    return next((size for size, text in enumerate(texts) if start.text in text), None)


@cache
def structures() -> Structures:
    return Structures(make_bundle(tiny_tokenizer(), target()), VOCAB_SIZE)


def law_at(logits: np.ndarray, prompt: Sequence[int], output: Sequence[int], s: Any):
    """The law of the token after `output`, [V] float64."""
    scores = scores_at(logits, prompt, output, s) / s.temperature
    order = np.argsort(-scores)[: s.top_k or None]
    p = np.exp(scores[order] - scores[order[0]])
    p /= p.sum()
    kept = (p.cumsum() - p < s.top_p) & (p >= s.min_p * p[0])
    law = np.zeros_like(scores)
    law[order[kept]] = p[kept] / p[kept].sum()
    return law


@torch.no_grad()
def logits_along(prompt: Sequence[int], output: Sequence[int]) -> np.ndarray:
    """The target's logits at each position of the output, [n, V]: one plain forward."""
    return target()(torch.tensor([[*prompt, *output]])).logits[0][len(prompt) - 1 : -1].numpy()


def laws_along(prompt: Sequence[int], output: Sequence[int], s: Any) -> np.ndarray:
    rows = logits_along(prompt, output)
    return np.stack([law_at(row, prompt, output[:at], s) for at, row in enumerate(rows)])


def behind_its_noise(seed: int, output: Sequence[int], s: Any) -> float:
    """How far the tokens of a coupled text are from the winners under its seed's noise, at most."""
    gaps = []
    with np.errstate(divide="ignore"):
        for position, law in enumerate(laws_along(prompt_ids(), output, s)):
            race = np.log(law) - np.log(exponentials(seed, position, VOCAB_SIZE).double().numpy())
            gaps.append(race.max() - race[output[position]])
    return max(gaps)


def behind_the_best(output: Sequence[int], s: Any) -> float:
    """How far the scores of a greedy text's tokens are from the highest, at most."""
    rows = enumerate(logits_along(prompt_ids(), output))
    each = [scores_at(row, prompt_ids(), output[:at], s) for at, row in rows]
    return max(one.max() - one[token] for one, token in zip(each, output, strict=True))


def places(outputs: Sequence[list[int]], s: Any, seed: int = 0) -> list[np.ndarray]:
    """Transforms of texts under the parameters `s`, tokens that occurred before first.

    So a penalty that is wrong, and moves mass between old tokens and new ones, shows.
    """
    noise, prompt = np.random.default_rng(seed), prompt_ids()
    found = []
    for output in outputs:
        ordered, ranks = [], []
        for at, law in enumerate(laws_along(prompt, output, s)):
            counts = np.bincount([*prompt, *output[:at]], minlength=len(law))
            order = np.argsort(-counts, kind="stable")
            ordered.append(law[order])
            ranks.append(int(np.flatnonzero(order == output[at])[0]))
        found.append(transform(np.stack(ordered), np.array(ranks), noise))
    return found


def prompt_ids(text: str = PROMPT) -> list[int]:
    return tiny_tokenizer().encode(text)


@cache
def near_target() -> Any:
    """A draft model that agrees with the target about half of the time."""
    return between(target(), tiny_model("llama", seed=3), 0.15)


async def start_near_drafter(methods: Sequence[str] = ("model", "ngram")) -> Worker:
    near = NativeEngine.from_model(near_target(), tiny_tokenizer(), ModelSpec("llama"))
    known = {"model": lambda: ModelDrafter(near), "ngram": NgramDrafter}
    drafters: dict[str, Any] = {name: known[name]() for name in methods}
    return await start_core(HypothesisCore, drafters, "d1")


async def generate(running: Cluster, seed: int | None = 1, **options: Any) -> Generation:
    neutral = {"temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True, "include_rounds": True}
    return await running.client.generate(PROMPT, seed=seed, **{**neutral, **options})


def rules_of(run: Generation) -> set[str]:
    return {str(stats.rejection_sample_method) for stats in run.rounds}
