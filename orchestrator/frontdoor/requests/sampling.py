"""Sampling parameters: ranges and defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.frontdoor.requests.checks import require, shown
from orchestrator.frontdoor.requests.format_start import check_format_start
from orchestrator.frontdoor.requests.inputs import require_in_vocabulary
from orchestrator.frontdoor.requests.request import SamplingRequest
from orchestrator.session.ranges import (
    ALLOWED_FORMATS,
    BIAS,
    DEFAULT_MAX_TOKENS,
    MAX_STOP_LENGTH,
)
from orchestrator.session.served_model import ServedModel
from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest
from services.contract.sampling import NUMBERS, as_drawn
from services.contract.sampling_checks import (
    MAX_BAD_TOKENS,
    MAX_BAD_WORD_LENGTH,
    MAX_LOGPROBS,
)
from services.contract.types import RESPONSE_FORMAT, FormatMarker, ResolvedSampling
from services.grammar.formats import size_problem


def check_sampling(params: SamplingRequest, model: ServedModel) -> None:
    """Everything that can be refused before the prompt is looked at.

    But for the lengths of lists, which were looked at before (`check_counts`), and for compiling a
    format, which takes a process of its own: `orchestrator.frontdoor.response_formats`.
    """
    for name, value in params.numbers.items():
        allowed = NUMBERS[name].allowed
        require(allowed.holds(value), f"sampling.{name}", shown(value), allowed.text)
    _check_format(params, model)
    check_format_start(params, model)
    _check_length(params, model)
    _check_biases(params, model)
    _check_limits(params, model)
    _check_stops(params, model)
    _check_logprobs(params, model)


def resolve_sampling(
    params: SamplingRequest,
    model: ServedModel,
    tokenizer: Tokenizer,
    room: int,
    start: FormatMarker | None = None,
) -> ResolvedSampling:
    """Checked parameters with every default filled in; a format begins at `start`.

    `room` is how many tokens the context has left after the prompt. Raises
    InvalidRequest when the lengths asked for do not fit.
    """
    defaults, wanted = model.defaults, params.response_format
    max_tokens = _max_tokens(params, room, model.most_tokens or room)
    numbers = {name: getattr(defaults, name) for name in NUMBERS}
    # Plus zero: -0.0 is 0.0, in the digest, too.
    numbers |= {name: value + 0 for name, value in params.numbers.items()}
    if numbers["top_k"] >= model.vocab_size:
        numbers["top_k"] = 0
    return ResolvedSampling(
        **as_drawn(numbers),
        max_tokens=max_tokens,
        min_tokens=_min_tokens(params, max_tokens),
        stop_token_ids=stop_token_ids(params, tokenizer.eos_token_ids),
        logit_bias=_biases(params),
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        response_format=wanted and replace(wanted, start=start),
        allowed_token_ids=tuple(sorted({*params.allowed_token_ids})),
        bad_words=bad_words(params.bad_words, tokenizer),
    )


def bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences that each word may not appear as, as vLLM has them, each once.

    With a space before it only where that gives as many tokens and another first one: a word
    in the middle of a text. Raises InvalidRequest for a word that is no token, or too many.
    """
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        size, allowed = f"{len(bare)} tokens", f"what is 1 to {MAX_BAD_TOKENS} tokens"
        require(1 <= len(bare) <= MAX_BAD_TOKENS, f"sampling.bad_words[{index}]", size, allowed)
        spaced = tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False)
        found[bare] = None
        if len(spaced) == len(bare) and spaced[0] != bare[0]:
            found[spaced] = None
    return tuple(found)


def _check_limits(params: SamplingRequest, model: ServedModel) -> None:
    for name in ("allowed_token_ids", "bad_words"):
        field = f"sampling.{name}"
        allowed = "left out (no verifier here heeds it)"
        require(model.limits_tokens or not getattr(params, name), field, "set", allowed)
    require_in_vocabulary("sampling.allowed_token_ids", tuple(params.allowed_token_ids), model)
    for index, word in enumerate(params.bad_words):
        fits = len(word) <= MAX_BAD_WORD_LENGTH and bool(word.strip())
        allowed = f"1 to {MAX_BAD_WORD_LENGTH} characters, not all of them blank"
        require(fits, f"sampling.bad_words[{index}]", f"{len(word)} characters", allowed)


def _check_format(params: SamplingRequest, model: ServedModel) -> None:
    wanted = params.response_format
    if wanted is None:
        return
    field = f"sampling.{wanted.kind}"
    if not model.structured:
        allowed = "left out (no verifier here keeps outputs to a format)"
        raise InvalidRequest(field, "set", allowed)
    if not {*wanted.capabilities} <= {RESPONSE_FORMAT, *model.formats}:
        allowed = "left out (no verifier here knows such formats)"
        raise InvalidRequest(field, "set", allowed)
    if complaint := size_problem(wanted):
        raise InvalidRequest(field, complaint, ALLOWED_FORMATS[wanted.kind])
    if params.ignore_eos:
        allowed = f"left out (nothing may follow the end of a {wanted.kind})"
        raise InvalidRequest("sampling.ignore_eos", "true", allowed)


def _check_biases(params: SamplingRequest, model: ServedModel) -> None:
    for token, bias in sorted(params.logit_bias.items()):
        field, last = f"sampling.logit_bias[{token}]", model.vocab_size - 1
        require(token <= last, field, token, f"token ids 0 to {last}")
        require(BIAS.holds(bias), field, shown(bias), BIAS.text)


def _biases(params: SamplingRequest) -> tuple[tuple[int, float], ...]:
    """By token id, because a map has no order; a bias of zero is none."""
    return tuple(sorted((token, bias) for token, bias in params.logit_bias.items() if bias))


def _check_stops(params: SamplingRequest, model: ServedModel) -> None:
    for index, stop in enumerate(params.stop):
        size, allowed = f"{len(stop)} characters", f"at most {MAX_STOP_LENGTH} characters"
        require(len(stop) <= MAX_STOP_LENGTH, f"sampling.stop[{index}]", size, allowed)
    require_in_vocabulary("sampling.stop_token_ids", tuple(params.stop_token_ids), model)


def _check_logprobs(params: SamplingRequest, model: ServedModel) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name) or 0
        require(wanted <= MAX_LOGPROBS, f"sampling.{name}", wanted, f"0 to {MAX_LOGPROBS}")
    if params.prompt_logprobs is not None and not model.scores:
        allowed = "left out (no verifier here tells how likely a prompt is)"
        raise InvalidRequest("sampling.prompt_logprobs", "set", allowed)


def _check_length(params: SamplingRequest, model: ServedModel) -> None:
    most, value = model.most_tokens, params.max_tokens
    if most is not None and value is not None:
        allowed = f"1 to {most} (the limit of this tenant)"
        require(1 <= value <= most, "sampling.max_tokens", value, allowed)


def _max_tokens(params: SamplingRequest, room: int, most: int) -> int:
    value = params.max_tokens
    if value is None:
        return min(room, most) if params.open_ended else min(DEFAULT_MAX_TOKENS, room, most)
    allowed = f"1 to {room} (what the context has left after the prompt)"
    require(1 <= value <= room, "sampling.max_tokens", value, allowed)
    return value


def _min_tokens(params: SamplingRequest, max_tokens: int) -> int:
    value = params.min_tokens or 0
    allowed = f"0 to {max_tokens} (max_tokens)"
    require(value <= max_tokens, "sampling.min_tokens", value, allowed)
    return value


def stop_token_ids(params: SamplingRequest, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that end the text."""
    eos = () if params.ignore_eos else eos_token_ids
    return tuple(sorted({*eos, *params.stop_token_ids}))
