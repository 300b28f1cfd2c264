"""Real transformers models whose next-token law depends on the last two tokens only.

One layer of Mistral with a sliding window of two: each row attends to its own
token and the one before, and rotary positions are relative. So the exact law of
a text of any length is a table [V, V, V], and a text can be tested against it.
"""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import torch

from services.contract.types import ResolvedSampling
from tests.models import tiny_model

VOCAB = 12
CONTEXT = 8192
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def target_model(vocab: int = VOCAB, seed: int = 0, sharpness: float = 0.5) -> Any:
    """The model whose law is promised; `sharpness` scales its logits."""
    widths = {"hidden_size": 32, "intermediate_size": 32, "sliding_window": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    sizes = {**widths, **heads, "max_position_embeddings": CONTEXT}
    model = tiny_model("mistral", vocab=vocab, seed=seed, **sizes)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness)
    return model


@cache
def draft_model(
    angle: float = 0.3, vocab: int = VOCAB, seed: int = 0, sharpness: float = 0.5
) -> Any:
    """A model `angle` radians away from the target: 0 is the target itself, pi/2 a stranger."""
    stranger = target_model(vocab, seed + 1000, sharpness)
    return between(target_model(vocab, seed, sharpness), stranger, angle)


@torch.no_grad()
def between(model: Any, stranger: Any, angle: float) -> Any:
    """A copy of `model` with its matrices turned by `angle` towards those of `stranger`."""
    turned = copy.deepcopy(model)
    for own, other in zip(turned.parameters(), stranger.parameters(), strict=True):
        if own.dim() >= 2:
            own.mul_(math.cos(angle)).add_(other, alpha=math.sin(angle))
    return turned


@cache
def letters(vocab: int = VOCAB) -> Any:
    """A tokenizer of `vocab` single letters; the last one ends a text, unless that is ignored."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {letter: token for token, letter in enumerate(_LETTERS[:vocab])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_LETTERS[vocab - 1])


def spelt(word: str) -> tuple[int, ...]:
    """The tokens of a word."""
    return tuple(_LETTERS.index(letter) for letter in word)


@torch.no_grad()
def raw_logits(model: Any) -> np.ndarray:
    """Logits after every pair of tokens, float64 [V, V, V]."""
    tokens = torch.arange(model.config.vocab_size)
    logits = model(torch.cartesian_prod(tokens, tokens)).logits[:, -1]
    return logits.double().numpy().reshape((len(tokens),) * 3)


def law_of(model: Any, sampling: ResolvedSampling) -> np.ndarray:
    """The law under temperature, top_k, top_p, min_p and token limits, float64 [V, V, V].

    A bad word has three tokens at most, all of them in the output.

    Raises ValueError if a token lies so near an edge of top_p or min_p that float32
    cannot tell on which side.
    """
    logits = raw_logits(model)
    for before in np.ndindex(logits.shape[:2]):
        logits[*before, _forbidden(before, sampling, len(logits))] = -np.inf
    rows = [_row(one, sampling) for one in logits.reshape(-1, len(logits))]
    return np.stack(rows).reshape(logits.shape)


def _forbidden(before: tuple[int, ...], sampling: ResolvedSampling, vocab: int) -> list[int]:
    """The tokens that may not follow two others."""
    allowed = sampling.allowed_token_ids or range(vocab)
    ends = [word[-1] for word in sampling.bad_words if before[3 - len(word) :] == word[:-1]]
    return [token for token in range(vocab) if token not in allowed or token in ends]


def _row(logits: np.ndarray, sampling: ResolvedSampling) -> np.ndarray:
    """One law [V]: a plain reading of the order in which the parameters apply."""
    order = np.argsort(-logits)
    kept = order[: sampling.top_k or None]
    p = np.exp((logits[kept] - logits.max()) / sampling.temperature)
    p /= p.sum()
    mass_before = p.cumsum() - p
    inside = _clear(mass_before < sampling.top_p, mass_before[1:], sampling.top_p)
    p, kept = p[inside], kept[inside]
    edge = sampling.min_p * p.max()
    inside = _clear(p >= edge, p[1:], edge)
    law = np.zeros_like(logits)
    law[kept[inside]] = p[inside] / p[inside].sum()
    return law


def _clear(inside: np.ndarray, values: np.ndarray, edge: float) -> np.ndarray:
    """`inside`, if no value is too near the edge to tell."""
    if 0 < edge < 1 and len(values) and np.abs(values - edge).min() < 1e-4 * edge:
        raise ValueError("a token lies on the edge of the law; take another seed")
    return inside


def overlap(target: np.ndarray, draft: np.ndarray) -> float:
    """Share of draft tokens that token-level rejection accepts: mean of sum min(p, q)."""
    return float(np.minimum(target, draft).sum(axis=-1).mean())
