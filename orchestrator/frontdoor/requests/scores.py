"""A request to score continuations of a context, as token ids.

Texts are split as evaluation harnesses do it, as lm-eval's `_encode_pair`: white space at the end
of a context belongs to the continuation, and the ids of a continuation are those of both texts
together without as many as the context alone has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.frontdoor.requests.checks import require, size_of
from orchestrator.frontdoor.requests.inputs import (
    check_counts,
    prompt_ids,
    prompt_text,
    require_in_vocabulary,
)
from orchestrator.frontdoor.requests.request import GenerationRequest, ListLengths
from orchestrator.session.ranges import MAX_CONTINUATIONS, MAX_PROMPT_BYTES, MAX_SCORED_NUMBERS
from orchestrator.session.served_model import ServedModel
from orchestrator.text import Tokenizer, TooLong
from services.contract.errors import InvalidRequest
from services.contract.sampling_checks import MAX_LOGPROBS

Continuation = str | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A context, as a request's input, and what may follow it; nothing of it is checked yet."""

    context: GenerationRequest
    continuations: Sequence[Continuation]
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class IncomingScore:
    """An unread request of `size` bytes, with so many `continuations`; `read` as for others."""

    size: int
    lengths: ListLengths
    continuations: int
    read: Callable[[], ScoreRequest]


@dataclass(frozen=True, slots=True)
class ScoreSpec:
    """Token ids; `top` alternatives are told beside each token that is scored."""

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    top: int = 0
    ephemeral: bool = False


def check_score_counts(lengths: ListLengths, continuations: int, model: ServedModel) -> None:
    """Raise InvalidRequest for lists that are too long; looks at no item."""
    check_counts(lengths, model)
    allowed = f"1 to {MAX_CONTINUATIONS}"
    require(1 <= continuations <= MAX_CONTINUATIONS, "continuations", continuations, allowed)


def build_score(request: ScoreRequest, tokenizer: Tokenizer, model: ServedModel) -> ScoreSpec:
    """The ids to score. Raises InvalidRequest naming the field."""
    if (asked := request.context.model) is not None:
        require(asked == model.name, "model", asked[:160], repr(model.name))
    top = request.logprobs or 0
    require(top <= MAX_LOGPROBS, "logprobs", top, f"0 to {MAX_LOGPROBS}")
    given = request.continuations
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) not in (0, len(given)):
        raise InvalidRequest("continuations", "texts and token ids", "texts alone, or ids alone")
    if texts:
        context, ids = _split(request.context, texts, tokenizer, model)
    else:
        context = prompt_ids(request.context, tokenizer, model)
        # Length first: an over-long list is not looked through.
        _check_sizes(context, given, top, model)
        ids = [() if one is None or isinstance(one, str) else tuple(one) for one in given]
    _check_sizes(context, ids, top, model)
    for index, one in enumerate(ids):
        require_in_vocabulary(f"continuations[{index}].tokens.ids", one, model)
    return ScoreSpec(context, tuple(ids), top, request.context.ephemeral)


def _split(
    request: GenerationRequest, texts: Sequence[str], tokenizer: Tokenizer, model: ServedModel
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    written = prompt_text(request, tokenizer, model)
    if written is None:
        # Of token ids no text is known.
        context = prompt_ids(request, tokenizer, model)
        return context, [_encoded(tokenizer, text, False, i, model) for i, text in enumerate(texts)]
    text, special = written
    bare = text.rstrip()
    _check_bytes(text, texts)
    context = _encoded(tokenizer, bare, special, None, model)
    behind = [
        _encoded(tokenizer, text + more, special, i, model)[len(context) :]
        for i, more in enumerate(texts)
    ]
    return context, behind


def _check_bytes(text: str, texts: Sequence[str]) -> None:
    size = len(texts) * size_of(text) + sum(map(size_of, texts))
    allowed = f"{MAX_PROMPT_BYTES} bytes at most, the context counted with each of them"
    require(size <= MAX_PROMPT_BYTES, "continuations", f"{size} bytes", allowed)


def _encoded(
    tokenizer: Tokenizer, text: str, special: bool, index: int | None, model: ServedModel
) -> tuple[int, ...]:
    try:
        return tokenizer.encode(text, special, model.max_context_length)
    except TooLong as error:
        field = "context" if index is None else f"continuations[{index}]"
        raise InvalidRequest(field, error.size, _allowed(model)) from None


def _allowed(model: ServedModel) -> str:
    return f"at most {model.max_context_length} tokens with its context (that of the model)"


def _check_sizes(
    context: tuple[int, ...], continuations: Sequence[Continuation], top: int, model: ServedModel
) -> None:
    require(len(context) > 0, "context", "0 tokens", "at least 1 (as a BOS or EOS token)")
    room = model.max_context_length - len(context)
    counts = [len(one or ()) for one in continuations]
    for index, count in enumerate(counts):
        field = f"continuations[{index}]"
        require(count > 0, field, "0 tokens", "at least 1")
        require(count <= room, field, f"{len(context) + count} tokens", _allowed(model))
    numbers = sum(counts) * (1 + top)
    allowed = f"{MAX_SCORED_NUMBERS} log-probabilities at most, alternatives included"
    require(numbers <= MAX_SCORED_NUMBERS, "continuations", numbers, allowed)
