"""A worker's checks of a session's sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from services.contract.sampling import NUMBERS
from services.contract.types import ResolvedSampling, VerifyMode

MAX_LOGPROBS = 20
MAX_ALLOWED_IDS = 4096
MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH = 128, 128
"""Of a request: words, and characters of one."""
MAX_BAD_SEQUENCES = 2 * MAX_BAD_WORDS
"""Each word with and without a leading space."""
MAX_BAD_TOKENS = 1 + 4 * MAX_BAD_WORD_LENGTH
"""Of one sequence: a token for each byte."""


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
    if (count := len(sampling.allowed_token_ids)) > MAX_ALLOWED_IDS:
        yield f"sampling.allowed_token_ids: {count} ids, more than {MAX_ALLOWED_IDS}"
    yield from _of_bad_words(sampling.bad_words)
    for token, bias in sampling.logit_bias:
        if not isfinite(bias):
            yield f"sampling.logit_bias[{token}]: {bias} is not a number to add"


def _of_bad_words(words: Sequence[Sequence[int]]) -> Iterator[str]:
    if len(words) > MAX_BAD_SEQUENCES:
        yield f"sampling.bad_words: {len(words)} sequences, more than {MAX_BAD_SEQUENCES}"
    for index, word in enumerate(words):
        if not 1 <= len(word) <= MAX_BAD_TOKENS:
            yield f"sampling.bad_words[{index}]: {len(word)} tokens, not 1 to {MAX_BAD_TOKENS}"


def _unread(name: str, mode: VerifyMode) -> bool:
    return name == "temperature" and mode is VerifyMode.GREEDY
