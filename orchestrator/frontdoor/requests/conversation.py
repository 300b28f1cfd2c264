"""A conversation as it was asked for, checked, and as its chat template gets it.

Texts in JSON (tools, arguments of calls, variables) are read here: bounded in bytes and depth,
and nothing but values that JSON has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from orchestrator.frontdoor.requests.checks import require, require_size, size_of
from orchestrator.frontdoor.requests.patient_json import check_json, read_json
from orchestrator.frontdoor.requests.request import (
    ConversationRequest,
    MessageLike,
    ToolCallLike,
    ToolRequest,
)
from orchestrator.session.ranges import (
    MAX_JSON_BYTES,
    MAX_JSON_DEPTH,
    MAX_MESSAGES,
    MAX_NAME_LENGTH,
    MAX_PROMPT_BYTES,
    MAX_ROLE_LENGTH,
)
from orchestrator.text import Conversation
from services.contract.errors import InvalidRequest

_MESSAGES, _TOOLS = "conversation.messages", "conversation.tools"
_KWARGS = "conversation.chat_template_kwargs"
_OWN_FIELDS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
_DEEP = f"{MAX_JSON_DEPTH} levels deep"


def read_conversation(asked: ConversationRequest) -> Conversation:
    """What the chat template gets. Raises InvalidRequest that names the field."""
    require(bool(asked.messages), _MESSAGES, "0 messages", f"1 to {MAX_MESSAGES}")
    require_size("conversation", sum(map(size_of, _texts(asked))), 0)
    messages = [_message(f"{_MESSAGES}[{i}]", one) for i, one in enumerate(asked.messages)]
    tools = [_tool(f"{_TOOLS}[{i}]", one) for i, one in enumerate(asked.tools)]
    open_end = bool(asked.continue_final_message)
    prompt = asked.add_generation_prompt
    allowed = "left out or false with continue_final_message"
    require(not (open_end and prompt), "conversation.add_generation_prompt", prompt, allowed)
    return Conversation(
        messages,
        tools or None,
        _kwargs(asked.chat_template_kwargs or ""),
        not open_end if prompt is None else prompt,
        open_end,
    )


def written(asked: ConversationRequest) -> list[Any]:
    """The conversation as a JSON value: what makes two equal.

    As before there were tools where there is nothing new: a retry across an upgrade finds its
    session.
    """
    messages = [[one.role, one.content, *_more_of(one)] for one in asked.messages]
    tools = [[one.name, one.description, one.parameters, one.json] for one in asked.tools]
    flags = [asked.add_generation_prompt, asked.continue_final_message]
    more = [tools, asked.chat_template_kwargs, *flags]
    is_new = any(one not in (None, []) for one in more)
    return [messages, json.dumps(more)] if is_new else [messages]


def _more_of(message: MessageLike) -> list[str]:
    calls = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    more: list[Any] = [calls, message.tool_call_id, message.name, message.reasoning_content]
    more += [True] if message.null_content else []
    return [json.dumps(more)] if any(more) else []


def _texts(asked: ConversationRequest) -> Iterator[str]:
    """All that counts as the size of a conversation."""
    for message in asked.messages:
        yield from (message.content, message.reasoning_content)
        yield from (call.arguments for call in message.tool_calls)
    for tool in asked.tools:
        yield from (tool.description or "", tool.parameters or "", tool.json or "")


def _message(field: str, said: MessageLike) -> dict[str, Any]:
    role = said.role
    allowed = f"1 to {MAX_ROLE_LENGTH} characters"
    require(1 <= len(role) <= MAX_ROLE_LENGTH, f"{field}.role", role[:MAX_ROLE_LENGTH], allowed)
    calls, of = said.tool_calls, said.tool_call_id
    if role != "assistant":
        require(not calls, f"{field}.tool_calls", f"{len(calls)} calls", "those of an assistant")
    if role != "tool":
        require(not of, f"{field}.tool_call_id", of[:64], "that of a message of role tool")
    is_null, size = said.null_content, len(said.content)
    allowed = "empty, with null_content"
    require(not (is_null and size), f"{field}.content", f"{size} characters", allowed)
    # A null is what is not there, as to transformers.
    message: dict[str, Any] = {"role": role} if is_null else {"role": role, "content": said.content}
    if calls:
        called = [_call(f"{field}.tool_calls[{i}]", one) for i, one in enumerate(calls)]
        message["tool_calls"] = called
    for name in ("tool_call_id", "name"):
        if value := getattr(said, name):
            message[name] = _name(f"{field}.{name}", value, 0)
    if said.reasoning_content:
        message["reasoning_content"] = said.reasoning_content
    return message


def _call(field: str, call: ToolCallLike) -> dict[str, Any]:
    arguments = call.arguments
    named = _name(f"{field}.name", call.name)
    given = _object(f"{field}.arguments", arguments, MAX_PROMPT_BYTES) if arguments else {}
    made = {"type": "function", "function": {"name": named, "arguments": given}}
    return {"id": _name(f"{field}.id", call.id), **made} if call.id else made


def _tool(field: str, tool: ToolRequest) -> dict[str, Any]:
    if tool.json is not None:
        return _object(f"{field}.json", tool.json)
    field += ".function"
    function: dict[str, Any] = {"name": _name(f"{field}.name", tool.name)}
    if (description := tool.description) is not None:
        size, allowed = size_of(description), f"at most {MAX_JSON_BYTES} bytes"
        require(size <= MAX_JSON_BYTES, f"{field}.description", f"{size} bytes", allowed)
        function["description"] = description
    if tool.parameters is not None:
        function["parameters"] = _object(f"{field}.parameters", tool.parameters)
    return {"type": "function", "function": function}


def _name(field: str, name: str, least: int = 1) -> str:
    allowed = f"{least} to {MAX_NAME_LENGTH} characters"
    require(least <= len(name) <= MAX_NAME_LENGTH, field, name[:64], allowed)
    return name


def _kwargs(source: str) -> dict[str, Any]:
    given = _object(_KWARGS, source) if source else {}
    for name in _OWN_FIELDS:
        allowed = f"a field of its own: conversation.{name}"
        require(name not in given, f"{_KWARGS}.{name}", name, allowed)
    return given


def _object(field: str, source: str, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object of at most `most` bytes, as Python reads it."""
    size, allowed = size_of(source), f"an object as JSON, at most {most} bytes and {_DEEP}"
    require(size <= most, field, f"{size} bytes", allowed)
    try:
        value = read_json(source)
        # A lone half of a surrogate pair is no text, and 1e999 no number.
        check_json(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, f"{size} bytes that are no JSON", allowed) from error
    require(isinstance(value, dict), field, f"JSON, of type {type(value).__name__}", allowed)
    require(_depth(value) <= MAX_JSON_DEPTH, field, f"more than {MAX_JSON_DEPTH} levels", allowed)
    made: dict[str, Any] = value
    return made


def _depth(value: Any) -> int:
    """Objects and lists within one another; no more than one beyond what is allowed."""
    depth, level = 0, [value]
    while level and depth <= MAX_JSON_DEPTH:
        inside = (one for outer in level for one in _items(outer))
        level = [one for one in inside if isinstance(one, dict | list)]
        depth += 1
    return depth


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
