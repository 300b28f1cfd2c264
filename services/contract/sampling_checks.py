"""A worker's checks of a session's sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from services.contract.types import ResolvedSampling, VerifyMode

MAX_LOGPROBS = 20
MIN_TEMPERATURE = 1e-6


def complaint(sampling: ResolvedSampling, mode: VerifyMode) -> str:
    """The first unusable parameter; empty = all are valid."""
    return next(_complaints(sampling, mode), "")


def _complaints(sampling: ResolvedSampling, mode: VerifyMode) -> Iterator[str]:
    temperature, infinite = sampling.temperature, float("inf")
    if mode is not VerifyMode.GREEDY and not MIN_TEMPERATURE <= temperature < infinite:
        yield f"sampling.temperature: {temperature} cannot be sampled from"
    if not 0 < sampling.top_p <= 1:
        yield f"sampling.top_p: {sampling.top_p} is outside (0, 1]"
    if not 0 <= sampling.min_p <= 1:
        yield f"sampling.min_p: {sampling.min_p} is outside [0, 1]"
    if sampling.top_k < 0:
        yield f"sampling.top_k: {sampling.top_k} is negative"
    if sampling.max_tokens <= 0:
        yield f"sampling.max_tokens: {sampling.max_tokens} is not positive"
    shown = sampling.logprobs or 0
    if not 0 <= shown <= MAX_LOGPROBS:
        yield f"sampling.logprobs: {shown} is outside 0..{MAX_LOGPROBS}"
    yield from _penalties(sampling)


def _penalties(sampling: ResolvedSampling) -> Iterator[str]:
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(sampling, name)
        if not isfinite(value):
            yield f"sampling.{name}: {value} is not a number to subtract"
    repetition = sampling.repetition_penalty
    if not 0 < repetition < float("inf"):
        yield f"sampling.repetition_penalty: {repetition} is not a positive number"
    for token, bias in sampling.logit_bias:
        if not isfinite(bias):
            yield f"sampling.logit_bias[{token}]: {bias} is not a number to add"
