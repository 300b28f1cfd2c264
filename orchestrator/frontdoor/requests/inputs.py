"""The input of a request: a prompt, token ids or a conversation, as prompt ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.frontdoor.requests.checks import require, require_size, size_of
from orchestrator.frontdoor.requests.conversation import read_conversation, written
from orchestrator.frontdoor.requests.request import FITTING, GenerationRequest, ListLengths
from orchestrator.session.ranges import (
    MAX_BIASES,
    MAX_CUT_TOKENS,
    MAX_MESSAGES,
    MAX_RENDERED_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
)
from orchestrator.session.served_model import ServedModel
from orchestrator.text import Conversation, Tokenizer, TooLong
from services.contract.errors import InvalidRequest
from services.contract.sampling_checks import MAX_ALLOWED_IDS, MAX_BAD_WORDS
from services.grammar.formats import MOST_OPTIONS


def prompt_ids(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel
) -> tuple[int, ...]:
    """The prompt's token ids, cut as asked: at least one, with room for one more token.

    Raises InvalidRequest; values name sizes, not content.
    """
    kind, kept = _kind(request), _kept(request, model)
    try:
        ids = _READERS[kind](request, tokenizer, model, kept)
    except TooLong as error:
        cut = error.allowed and f"with truncate_prompt_tokens {error.allowed}"
        raise InvalidRequest(kind, error.size, cut or _allowed(model)) from None
    require(1 <= len(ids) <= _longest(model), kind, f"{len(ids)} tokens", _allowed(model))
    return ids


def _kept(request: GenerationRequest, model: ServedModel) -> int | None:
    """How many of the input's last tokens are wanted; None: all."""
    kept, context = request.truncate_prompt_tokens, model.max_context_length
    if kept == FITTING:
        return max(1, context - max(1, request.sampling.max_tokens or 0))
    if kept is not None:
        allowed = f"1 to {context} (the model's context)"
        require(1 <= kept <= context, "truncate_prompt_tokens", kept, allowed)
    return kept


def _most(model: ServedModel, kept: int | None) -> int | None:
    """Tokens of a text before it is cut; None: what its size in bytes allows."""
    return _longest(model) if kept is None else None


def prompt_text(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel
) -> tuple[str, bool] | None:
    """The text of a prompt or conversation, and whether special tokens are to be added to it.

    None for token ids. Raises InvalidRequest.
    """
    kind = _kind(request)
    if kind == "tokens":
        return None
    if kind == "prompt":
        prompt = request.prompt or ""
        require_size("prompt", size_of(prompt), 1)
        return prompt, True
    try:
        conversation = _conversation(request, tokenizer, model)
        return tokenizer.render(conversation, MAX_RENDERED_CHARACTERS), False
    except TooLong as error:
        raise InvalidRequest(kind, error.size, _allowed(model)) from None


def _longest(model: ServedModel) -> int:
    """Tokens of a prompt at most: one more has to fit."""
    return model.max_context_length - 1


def _allowed(model: ServedModel) -> str:
    return f"1 to {_longest(model)} tokens (the model's context is {model.max_context_length})"


def check_counts(lengths: ListLengths, model: ServedModel) -> None:
    """Raise InvalidRequest for lists that are too long; looks at no item.

    A message could hold millions of small items, which take memory while the request waits.
    """
    ids, of_ids = _longest(model), _allowed(model)
    if lengths.cut:
        ids, of_ids = MAX_CUT_TOKENS, ""
    calls, of_calls = MAX_TOOL_CALLS, f"at most {MAX_TOOL_CALLS} in all messages together"
    said = "conversation.messages"
    for field, count, most, unit, allowed in (
        ("tokens", lengths.tokens, ids, "tokens", of_ids),
        (said, lengths.messages, MAX_MESSAGES, "messages", f"1 to {MAX_MESSAGES}"),
        ("conversation.tools", lengths.tools, MAX_TOOLS, "tools", ""),
        (f"{said}.tool_calls", lengths.tool_calls, calls, "calls", of_calls),
        ("sampling.stop", lengths.stop, MAX_STOPS, "strings", ""),
        ("sampling.stop_token_ids", lengths.stop_token_ids, MAX_STOP_TOKEN_IDS, "ids", ""),
        ("sampling.logit_bias", lengths.logit_bias, MAX_BIASES, "entries", ""),
        ("sampling.allowed_token_ids", lengths.allowed_token_ids, MAX_ALLOWED_IDS, "ids", ""),
        ("sampling.bad_words", lengths.bad_words, MAX_BAD_WORDS, "words", ""),
        ("sampling.choice", lengths.choice, MOST_OPTIONS, "options", ""),
    ):
        require(count <= most, field, f"{count} {unit}", allowed or f"at most {most} {unit}")


def content(request: GenerationRequest) -> list[Any]:
    """The input as given, as a JSON value: what makes two inputs equal."""
    kind, kept = _kind(request), request.truncate_prompt_tokens
    cut = [] if kept is None else [kept]
    if kind == "prompt":
        return [kind, request.prompt, *cut]
    if kind == "tokens":
        return [kind, request.tokens or [], *cut]
    return [kind, *written(request.conversation), *cut] if request.conversation else [kind]


def _kind(request: GenerationRequest) -> str:
    kind = next((kind for kind in _READERS if getattr(request, kind) is not None), None)
    if kind is None:
        raise InvalidRequest("input", None, "one of prompt, tokens, conversation")
    return kind


def _read_prompt(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel, kept: int | None
) -> tuple[int, ...]:
    prompt = request.prompt or ""
    require_size("prompt", size_of(prompt), 1)
    return tokenizer.encode(prompt, most=_most(model, kept), kept=kept)


def _read_tokens(
    request: GenerationRequest, _tokenizer: Tokenizer, model: ServedModel, kept: int | None
) -> tuple[int, ...]:
    tokens = request.tokens or ()
    ids = tuple(tokens if kept is None else tokens[-kept:])
    require_in_vocabulary("tokens.ids", ids, model, len(tokens) - len(ids))
    return ids


def _read_conversation(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel, kept: int | None
) -> tuple[int, ...]:
    conversation, most = _conversation(request, tokenizer, model), _most(model, kept)
    return tokenizer.encode_conversation(conversation, most, MAX_RENDERED_CHARACTERS, kept)


def _conversation(
    request: GenerationRequest, tokenizer: Tokenizer, model: ServedModel
) -> Conversation:
    asked = request.conversation
    assert asked is not None
    conversation = read_conversation(asked)
    if not tokenizer.has_chat_template:
        count = f"{len(conversation.messages)} messages"
        allowed = f"a prompt or tokens: {model.name} has no chat template"
        raise InvalidRequest("conversation", count, allowed)
    if conversation.tools and not tokenizer.takes_tools:
        count = f"{len(conversation.tools)} tools"
        allowed = f"none: the chat template of {model.name} has no place for tools"
        raise InvalidRequest("conversation.tools", count, allowed)
    return conversation


_Reader = Callable[[GenerationRequest, Tokenizer, ServedModel, int | None], tuple[int, ...]]
_READERS: dict[str, _Reader] = {
    "prompt": _read_prompt,
    "tokens": _read_tokens,
    "conversation": _read_conversation,
}


def require_in_vocabulary(
    field: str, ids: tuple[int, ...], model: ServedModel, before: int = 0
) -> None:
    """Raise InvalidRequest naming the first id that the model does not have.

    `before`: how many items of the field come before `ids`.
    """
    if not ids or max(ids) < model.vocab_size:
        return
    index = next(i for i, token in enumerate(ids) if token >= model.vocab_size)
    raise InvalidRequest(f"{field}[{before + index}]", ids[index], f"0 to {model.vocab_size - 1}")
