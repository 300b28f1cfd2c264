"""From keyword arguments to a GenerateRequest. What is left out stays out of the message."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from paceline._sampling import SamplingOptions
from paceline.by_name import numbers_of
from paceline.errors import FieldViolation, InvalidArgument
from paceline.results import Method
from paceline.together import MOST_COMPLETIONS
from paceline.v1 import inference_pb2 as pb

_METHODS: dict[Method, int] = numbers_of(Method, pb.RejectionSampleMethod.DESCRIPTOR)
del _METHODS[Method.GREEDY]  # No client asks for it: it is what temperature 0 is.


class Options(SamplingOptions, total=False):
    """How to sample, speculate and report; all left out = the server's defaults.

    Sampling follows the usual names. `logprobs` is the number of alternatives
    to report with each token, `prompt_logprobs` with each of the prompt's. At most one of
    `json_schema`, `regex`, `choice`, `grammar` and `structural_tag`; it holds behind
    `response_format_start`, a text, token ids, or True for what ends the model's thoughts.
    `method` names a drafter, or several joined by commas; `num_speculative_tokens`
    caps the draft window.
    `include_rounds` asks for statistics, text and origin per token.
    `ephemeral` keeps no text on the server after the end. A lower `priority` is sooner among
    waiting sessions of one tenant. `truncate_prompt_tokens` keeps the last so many tokens of
    the input.

    For `messages` alone, as in transformers' `apply_chat_template`: `tools` are definitions,
    `chat_template_kwargs` more variables for the template, `continue_final_message` goes on
    with the last message.
    """

    model: str
    method: str
    num_speculative_tokens: int
    rejection_sample_method: Method | str
    disable_speculative_decoding: bool
    num_candidates: int
    include_rounds: bool
    ephemeral: bool
    tools: Sequence[Mapping[str, Any]]
    chat_template_kwargs: Mapping[str, Any]
    add_generation_prompt: bool
    continue_final_message: bool
    priority: int
    truncate_prompt_tokens: int


_INSTEAD = {"best_of": "best_of: ask for n completions and compare them by their logprobs"}
"""What others serve, and what to do here."""
_FORMS = tuple(
    field.name for field in pb.SamplingParams.DESCRIPTOR.oneofs_by_name["response_format"].fields
)

Message = Mapping[str, Any]
"""One turn of a conversation: {"role": ..., "content": ...}.

As in the OpenAI API it may have `tool_calls`, `tool_call_id`, `name` and `reasoning_content`;
`arguments` of a call are JSON, or a mapping.
"""

_SPECULATION = frozenset(field.name for field in pb.SpeculationParams.DESCRIPTOR.fields)
_CONVERSATION = frozenset(field.name for field in pb.Conversation.DESCRIPTOR.fields)
_TOP_LEVEL = frozenset(
    {"model", "include_rounds", "ephemeral", "priority", "truncate_prompt_tokens"}
)


def build_request(
    prompt: str | None,
    tokens: Sequence[int] | None,
    messages: Sequence[Message] | None,
    request_id: str | None,
    options: Mapping[str, Any],
    n: int | None = None,
) -> pb.GenerateRequest:
    """The request. Without an id it gets one, so that it can be aborted and retried.

    Raises InvalidArgument for a value that its field cannot hold, TypeError for
    an unknown option or for not exactly one input.
    """
    if sum(given is not None for given in (prompt, tokens, messages)) != 1:
        raise TypeError("give exactly one of prompt, tokens and messages")
    if unknown := options.keys() - Options.__annotations__.keys():
        hints = "".join(f"; {_INSTEAD[name]}" for name in sorted(unknown & _INSTEAD.keys()))
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}{hints}")
    if messages is None and (alone := sorted(_CONVERSATION & options.keys())):
        raise TypeError(f"{', '.join(alone)}: only with messages")
    _check_sampling(options)
    request = pb.GenerateRequest(request_id=uuid.uuid4().hex if request_id is None else request_id)
    if n is not None and not 1 <= n <= MOST_COMPLETIONS:
        raise _refused("n", n, ValueError(f"allowed is 1 to {MOST_COMPLETIONS}"))
    _fill(request, "n", n)
    _fill(request, "prompt", prompt)
    _fill(request.tokens, "ids", tokens, "tokens.ids")
    _fill(request.conversation, "messages", messages, "conversation.messages")
    for name, value in options.items():
        _set_option(request, name, value)
    return request


def _check_sampling(options: Mapping[str, Any]) -> None:
    """Refuse what a message cannot say, and would lose without a word."""
    forms = [name for name in _FORMS if options.get(name) is not None]
    if len(forms) > 1:
        reason = ValueError(f"{' and '.join(forms)} are given; allowed is one response format")
        raise _refused(f"sampling.{forms[1]}", options[forms[1]], reason)
    allowed = options.get("allowed_token_ids")
    if allowed is not None and len(allowed) == 0:
        reason = ValueError("allowed is at least one token id; left out: any token")
        raise _refused("sampling.allowed_token_ids", allowed, reason)


def build_score_request(
    context: str | None,
    tokens: Sequence[int] | None,
    messages: Sequence[Message] | None,
    continuations: Sequence[str | Sequence[int]],
    options: Mapping[str, Any],
) -> pb.ScoreRequest:
    """A request to score. Raises InvalidArgument and TypeError as `build_request`."""
    if sum(given is not None for given in (context, tokens, messages)) != 1:
        raise TypeError("give exactly one of context, tokens and messages")
    request = pb.ScoreRequest()
    _fill(request, "prompt", context)
    _fill(request.tokens, "ids", tokens, "tokens.ids")
    _fill(request.conversation, "messages", messages, "conversation.messages")
    _fill(request, "continuations", continuations)
    for name, value in options.items():
        _fill(request, name, value)
    return request


def _set_option(request: pb.GenerateRequest, name: str, value: Any) -> None:
    if name in _TOP_LEVEL:
        _fill(request, name, value)
    elif name in _CONVERSATION:
        _fill(request.conversation, name, value, f"conversation.{name}")
    elif name in _SPECULATION:
        _fill(request.speculation, name, value, f"speculation.{name}")
    else:
        _fill(request.sampling, name, value, f"sampling.{name}")


def _fill(message: Any, name: str, value: Any, path: str = "") -> None:
    """Set one field, unless `value` is None; `path` names it in the error."""
    if value is None:
        return
    try:
        message.MergeFrom(type(message)(**{name: _WIRE.get(name, _as_is)(value)}))
        message.SetInParent()
    except (TypeError, ValueError, KeyError) as error:
        raise _refused(path or name, value, error) from None


def _refused(path: str, value: Any, error: Exception) -> InvalidArgument:
    text = f"{path}: {value!r} does not fit: {error}"
    code = grpc.StatusCode.INVALID_ARGUMENT
    return InvalidArgument(text, code=code, violations=(FieldViolation(path, text),))


def _as_is(value: Any) -> Any:
    return value


def _strings(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _turns(messages: Sequence[Message]) -> list[pb.Message]:
    return [_turn(**message) for message in messages]


def _turn(
    *, content: str | None = None, tool_calls: Sequence[Any] | None = None, **rest: Any
) -> pb.Message:
    calls = [_call(**call) for call in tool_calls or ()]
    # What the OpenAI client returns has None, or an empty list, for what there is not.
    given = {name: value for name, value in rest.items() if value}
    return pb.Message(content=content, null_content=content is None, tool_calls=calls, **given)


def _call(*, function: Mapping[str, Any], type: str = "function", id: str = "") -> pb.ToolCall:
    if type != "function":
        raise ValueError("the type of a tool call is function")
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return pb.ToolCall(id=id, name=function["name"], arguments=text)


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[pb.Tool]:
    return [pb.Tool(json=_json(tool)) for tool in tools]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _continuations(given: Sequence[str | Sequence[int]]) -> list[pb.Continuation]:
    return [
        pb.Continuation(text=one)
        if isinstance(one, str)
        else pb.Continuation(tokens=pb.TokenIds(ids=one))
        for one in given
    ]


def _choice(options: Sequence[str]) -> pb.Choice:
    return pb.Choice(options=_strings(options))


def _start(value: str | Sequence[int] | bool) -> pb.FormatStart:
    if isinstance(value, bool):
        return pb.FormatStart(auto=value)
    if isinstance(value, str):
        return pb.FormatStart(text=value)
    return pb.FormatStart(token_ids=pb.TokenIds(ids=value))


def _method(value: Method | str) -> int:
    allowed = ", ".join(method.value for method in _METHODS)
    if value not in _METHODS:
        raise ValueError(f"allowed is {allowed}")
    return _METHODS[Method(value)]


_WIRE: dict[str, Callable[[Any], Any]] = {
    "stop": _strings,
    "bad_words": _strings,
    "messages": _turns,
    "tools": _tools,
    "chat_template_kwargs": _json,
    "choice": _choice,
    "continuations": _continuations,
    "response_format_start": _start,
    "rejection_sample_method": _method,
}
