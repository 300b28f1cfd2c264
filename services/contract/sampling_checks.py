"""A worker's checks of a session's sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from services.contract.sampling import NUMBERS
from services.contract.types import ResolvedSampling, VerifyMode

MAX_LOGPROBS = 20


def complaint(sampling: ResolvedSampling, mode: VerifyMode) -> str:
    """The first unusable parameter; empty = all are valid."""
    return next(_complaints(sampling, mode), "")


def _complaints(sampling: ResolvedSampling, mode: VerifyMode) -> Iterator[str]:
    for name, number in NUMBERS.items():
        value = getattr(sampling, name)
        if not (number.usable.holds(value) or _unread(name, mode)):
            yield f"sampling.{name}: {value} {number.unusable}"
    if sampling.max_tokens <= 0:
        yield f"sampling.max_tokens: {sampling.max_tokens} is not positive"
    for name in ("logprobs", "prompt_logprobs"):
        shown = getattr(sampling, name) or 0
        if not 0 <= shown <= MAX_LOGPROBS:
            yield f"sampling.{name}: {shown} is outside 0..{MAX_LOGPROBS}"
    for token, bias in sampling.logit_bias:
        if not isfinite(bias):
            yield f"sampling.logit_bias[{token}]: {bias} is not a number to add"


def _unread(name: str, mode: VerifyMode) -> bool:
    return name == "temperature" and mode is VerifyMode.GREEDY
