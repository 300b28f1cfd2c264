"""A `GenerateRequest` of the wire as what the front door knows, field by field of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from google.protobuf.message import Message
from paceline.by_name import names_of
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.requests import (
    ConversationRequest,
    FormatStartRequest,
    GenerationRequest,
    IncomingRequest,
    IncomingScore,
    ListLengths,
    SamplingRequest,
    ScoreRequest,
    SpeculationRequest,
    ToolRequest,
)
from orchestrator.session.ranges import MAX_MESSAGES
from services.contract.sampling import NUMBERS
from services.contract.wire.records import read_format

_RULES = names_of(pb.RejectionSampleMethod.DESCRIPTOR)


def incoming(message: pb.GenerateRequest) -> IncomingRequest:
    """The request in a message; what is done here takes no longer for a long one."""
    params = message.sampling
    lengths = ListLengths(
        len(message.tokens.ids),
        len(message.conversation.messages),
        len(params.stop),
        len(params.stop_token_ids),
        len(params.logit_bias),
        len(message.conversation.tools),
        _calls(message.conversation.messages),
        len(params.allowed_token_ids),
        len(params.bad_words),
        len(params.choice.options),
        message.HasField("truncate_prompt_tokens"),
    )
    return IncomingRequest(message.ByteSize(), lengths, partial(read_request, message))


def incoming_score(message: pb.ScoreRequest) -> IncomingScore:
    """The same of a request to score."""
    talk = message.conversation
    lengths = ListLengths(
        tokens=len(message.tokens.ids),
        messages=len(talk.messages),
        tools=len(talk.tools),
        tool_calls=_calls(talk.messages),
    )
    return IncomingScore(
        message.ByteSize(), lengths, len(message.continuations), partial(read_score, message)
    )


def read_score(message: pb.ScoreRequest) -> ScoreRequest:
    """What such a message asks for, unchecked."""
    context = GenerationRequest(
        **_input(message, message.WhichOneof("context")),
        model=message.model if message.HasField("model") else None,
        ephemeral=message.ephemeral,
    )
    continuations = list(map(_continuation, message.continuations))
    top = message.logprobs if message.HasField("logprobs") else None
    return ScoreRequest(context, continuations, top)


def _continuation(message: pb.Continuation) -> str | Sequence[int] | None:
    kind = message.WhichOneof("content")
    if kind == "text":
        return message.text
    return message.tokens.ids if kind == "tokens" else None


def _calls(messages: Sequence[pb.Message]) -> int:
    """Of as many messages as a conversation may have; one of more is refused for those."""
    return sum(len(message.tool_calls) for message in messages[:MAX_MESSAGES])


def read_request(message: pb.GenerateRequest) -> GenerationRequest:
    """What a message asks for, unchecked; no list is copied."""
    return GenerationRequest(
        **_plain(_REQUEST, message),
        **_input(message, message.WhichOneof("input")),
        sampling=_sampling(message.sampling),
        speculation=_speculation(message.speculation),
    )


def _input(message: pb.GenerateRequest | pb.ScoreRequest, kind: str | None) -> dict[str, Any]:
    """What a prompt or a context is given as, by the name of its kind."""
    match kind:
        case "prompt":
            return {kind: message.prompt}
        case "tokens":
            return {kind: message.tokens.ids}
        case "conversation":
            return {kind: _conversation(message.conversation)}
        case _:
            return {}


def _conversation(message: pb.Conversation) -> ConversationRequest:
    tools = tuple(map(_tool, message.tools))
    plain = _plain(_CONVERSATION, message)
    return ConversationRequest(**plain, messages=message.messages, tools=tools)


def _tool(message: pb.Tool) -> ToolRequest:
    if message.WhichOneof("definition") == "json":
        return ToolRequest(json=message.json)
    return ToolRequest(**_plain(_FUNCTION, message.function))


def _sampling(params: pb.SamplingParams) -> SamplingRequest:
    return SamplingRequest(
        **_plain(_SAMPLING, params),
        numbers={name: getattr(params, name) for name in NUMBERS if params.HasField(name)},
        response_format=read_format(params, "response_format"),
        response_format_start=_start(params),
    )


def _start(params: pb.SamplingParams) -> FormatStartRequest | None:
    if not params.HasField("response_format_start"):
        return None
    start = params.response_format_start
    kind = start.WhichOneof("start")
    return FormatStartRequest(
        text=start.text if kind == "text" else None,
        token_ids=start.token_ids.ids if kind == "token_ids" else None,
        auto=start.auto,
    )


def _speculation(params: pb.SpeculationParams) -> SpeculationRequest:
    given = _plain(_SPECULATION, params)
    if (number := given["rejection_sample_method"]) is not None:
        given["rejection_sample_method"] = _rule(number)
    return SpeculationRequest(**given)


def _rule(number: int) -> str:
    """A rule's name; that of a number that nobody knows is the number."""
    return _RULES.get(number, str(number))


Shared = tuple[tuple[str, bool], ...]


def _plain(names: Shared, message: Message) -> dict[str, Any]:
    """The values of these fields; None where the wire left one out."""
    return {
        name: getattr(message, name) if not optional or message.HasField(name) else None
        for name, optional in names
    }


def _shared(kind: type[Any], message: type[Message]) -> Shared:
    """The fields that both have and that are no messages; whether the wire may leave one out."""
    known = message.DESCRIPTOR.fields_by_name
    both = [known[field.name] for field in fields(kind) if field.name in known]
    return tuple((one.name, one.has_presence) for one in both if _is_plain(one))


def _is_plain(field: Any) -> bool:
    """Neither a message nor one of several; proto3 calls `optional` a choice of one."""
    choice, inner = field.containing_oneof, field.message_type
    alone = choice is None or len(choice.fields) == 1
    return alone and (inner is None or inner.GetOptions().map_entry)


_REQUEST = _shared(GenerationRequest, pb.GenerateRequest)
_CONVERSATION = _shared(ConversationRequest, pb.Conversation)
_FUNCTION = _shared(ToolRequest, pb.FunctionDefinition)
_SAMPLING = _shared(SamplingRequest, pb.SamplingParams)
_SPECULATION = _shared(SpeculationRequest, pb.SpeculationParams)
