"""Tools, calls and variables of a conversation: what is taken, and what is refused by its name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.frontdoor.requests import build_spec, check_counts
from orchestrator.session.spec import SessionSpec
from orchestrator.text import Conversation, Tokenizer
from services.contract.errors import InvalidRequest
from tests.orchestrator.chat_templates import CALLS_IN_TAGS, CHATML, DATED, THINKS
from tests.orchestrator.request_kit import MODEL
from tests.orchestrator.text_kit import bundle, byte_level_backend

ROOMY = replace(MODEL, max_context_length=4096)
USER = pb.Message(role="user", content="hi")
PARAMETERS = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
TELL = pb.Tool(
    function=pb.FunctionDefinition(name="tell", description="Tells n.", parameters=PARAMETERS)
)
CALL = pb.ToolCall(id="c1", name="tell", arguments='{"n": 1}')
CALLING = pb.Message(role="assistant", tool_calls=[CALL], reasoning_content="so")
RESULT = pb.Message(role="tool", content="1", tool_call_id="c1", name="tell")
KB64 = 64 * 1024
OBJECT = "an object as JSON, at most 65536 bytes and 32 levels deep"
LONG_OBJECT = OBJECT.replace("65536", f"{64 * KB64}")


def with_template(source: str = CALLS_IN_TAGS) -> Tokenizer:
    return Tokenizer(bundle(byte_level_backend(), source))


def asked(
    *messages: pb.Message, source: str = CALLS_IN_TAGS, **fields: Any
) -> tuple[SessionSpec, str]:
    """The spec of a conversation, and the text that its prompt is."""
    said = pb.Conversation(messages=messages or [USER], **fields)
    tokenizer = with_template(source)
    request = incoming(pb.GenerateRequest(conversation=said))
    check_counts(request.lengths, ROOMY)
    spec = build_spec(request.read(), tokenizer, ROOMY, lambda: 7, lambda: "drawn")
    return spec, tokenizer.decode(spec.prompt, skip_special_tokens=False)


def rendered(source: str, messages: list[dict[str, Any]], **given: Any) -> str:
    return with_template(source).render(Conversation(messages, **given))


USER_SEEN = {"role": "user", "content": "hi"}
TELL_SEEN = {
    "type": "function",
    "function": {
        "name": "tell",
        "description": "Tells n.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
CALLING_SEEN = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "tell", "arguments": {"n": 1}}}
    ],
    "reasoning_content": "so",
}
RESULT_SEEN = {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "tell"}


@pytest.mark.parametrize("tool", [TELL, pb.Tool(json=json.dumps(TELL_SEEN))])
def test_tools_calls_and_results_are_given_to_the_template(tool: pb.Tool) -> None:
    _, text = asked(USER, CALLING, RESULT, tools=[tool])
    seen = [USER_SEEN, CALLING_SEEN, RESULT_SEEN]
    assert text == rendered(CALLS_IN_TAGS, seen, tools=[TELL_SEEN])
    assert '{"name": "tell", "arguments": {"n": 1}}' in text
    _, whole = asked(USER, CALLING, RESULT, source="{{ messages | tojson }}")
    assert json.loads(whole) == [USER_SEEN, {"thinking": "so", **CALLING_SEEN}, RESULT_SEEN]


def test_what_is_left_out_is_not_given() -> None:
    bare = pb.Tool(function=pb.FunctionDefinition(name="tell"))
    message = pb.Message(role="assistant", tool_calls=[pb.ToolCall(name="tell")])
    _, text = asked(USER, message, tools=[bare], source="{{ [tools, messages[1]] | tojson }}")
    function = {"name": "tell", "arguments": {}}
    assert json.loads(text) == [
        [{"type": "function", "function": {"name": "tell"}}],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
    ]


def test_a_null_content_is_not_given_either() -> None:
    message = pb.Message(role="assistant", tool_calls=[CALL], null_content=True)
    _, text = asked(USER, message, source="{{ messages | tojson }}")
    assert "content" not in json.loads(text)[1]


def test_a_whole_tool_keeps_its_order_and_what_only_the_template_knows() -> None:
    given = '{"strict": true, "function": {"return": {"type": "string"}, "name": "tell"}}'
    _, text = asked(tools=[pb.Tool(json=given)], source="{{ tools[0] | tojson }}")
    assert text == given


def test_variables_reach_the_template_and_unknown_ones_change_nothing() -> None:
    off = "<think>\n\n</think>\n\n"
    for kwargs, end in (('{"enable_thinking": false}', off), ('{"colour": [1]}', "assistant\n")):
        _, text = asked(source=THINKS, chat_template_kwargs=kwargs)
        assert text.endswith(end)
    kwargs = '{"date_string": "the first of May"}'
    assert "Date: the first of May\n" in asked(source=DATED, chat_template_kwargs=kwargs)[1]


def test_where_a_prompt_ends_can_be_asked_for() -> None:
    half = pb.Message(role="assistant", content="The law")
    whole = "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert asked(source=CHATML, add_generation_prompt=False)[1] == whole
    for given in ({}, {"add_generation_prompt": False}):
        _, text = asked(USER, half, source=CHATML, continue_final_message=True, **given)
        assert text == f"{whole}<|im_start|>assistant\nThe law"


def test_each_part_of_a_conversation_is_part_of_its_content() -> None:
    talks: list[tuple[list[pb.Message], dict[str, Any]]] = [
        ([USER], {}),
        ([USER], {"tools": [TELL]}),
        ([USER], {"tools": [pb.Tool(json="{}")]}),
        ([USER], {"chat_template_kwargs": "{}"}),
        ([USER], {"add_generation_prompt": True}),
        ([USER], {"continue_final_message": True}),
        ([USER, RESULT], {}),
        ([USER, pb.Message(role="tool", content="1")], {}),
        ([USER, CALLING], {}),
        ([USER, pb.Message(role="assistant", tool_calls=[CALL])], {}),
        ([USER, pb.Message(role="assistant", tool_calls=[CALL], null_content=True)], {}),
        ([USER, pb.Message(role="assistant", tool_calls=[CALL] * 2)], {}),
    ]
    digests = {asked(*messages, **more)[0].digest for messages, more in talks}
    assert len(digests) == len(talks)


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def test_json_may_be_as_deep_as_is_said() -> None:
    asked(chat_template_kwargs=deep(32))
    asked(tools=[pb.Tool(json=deep(32))])


def test_a_call_may_have_written_a_file() -> None:
    arguments = {"path": "a.py", "text": "x = 1\n" * 15_000}
    call = pb.ToolCall(name="write", arguments=json.dumps(arguments))
    said = pb.Message(role="assistant", tool_calls=[call])
    source = "{{ messages[1].tool_calls[0].function | tojson }}"
    asks = pb.GenerateRequest(
        conversation=pb.Conversation(messages=[USER, said]), truncate_prompt_tokens=60
    )
    request, tokenizer = incoming(asks), with_template(source)
    check_counts(request.lengths, ROOMY)
    prompt = build_spec(request.read(), tokenizer, ROOMY).prompt
    assert tokenizer.decode(prompt).endswith('x = 1\\n"}}')


def called(**fields: Any) -> dict[str, Any]:
    return {"messages": [pb.Message(role="assistant", tool_calls=[pb.ToolCall(**fields)])]}


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [pb.Tool(function=pb.FunctionDefinition(**fields))]}


def kwargs(text: str) -> dict[str, Any]:
    return {"chat_template_kwargs": text}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [pb.Message(**fields)]}


ARGUMENTS, JSON = "messages[0].tool_calls[0].arguments", "tools[0].json"
LONG, KWARGS = "x" * 257, "chat_template_kwargs"
CASES: list[tuple[dict[str, Any], str, object, str]] = [
    ({"tools": [TELL] * 129}, "tools", "129 tools", "at most 128"),
    (function(), "tools[0].function.name", "", "1 to 256 characters"),
    (function(name=LONG), "tools[0].function.name", "x" * 64, "1 to 256 characters"),
    (
        function(name="a", description="x" * (KB64 + 1)),
        "tools[0].function.description",
        f"{KB64 + 1} bytes",
        "at most 65536 bytes",
    ),
    (function(name="a", parameters="[]"), "tools[0].function.parameters", None, OBJECT),
    (function(name="a", parameters=""), "tools[0].function.parameters", None, OBJECT),
    ({"tools": [pb.Tool()]}, "tools[0].function.name", "", "1 to 256 characters"),
    ({"tools": [TELL, pb.Tool(json="{")]}, "tools[1].json", "1 bytes that are no JSON", OBJECT),
    (
        {"tools": [pb.Tool(json='{"a":1e999}')]},
        "tools[0].json",
        "11 bytes that are no JSON",
        OBJECT,
    ),
    ({"tools": [pb.Tool(json="[]")]}, JSON, "JSON, of type list", OBJECT),
    ({"tools": [pb.Tool(json='{"a": NaN}')]}, JSON, None, OBJECT),
    ({"tools": [pb.Tool(json='{"a": "\\ud800"}')]}, JSON, None, OBJECT),
    ({"tools": [pb.Tool(json='{"a": ' + "1" * 5000 + "}")]}, JSON, None, OBJECT),
    ({"tools": [pb.Tool(json=deep(33))]}, JSON, "more than 32 levels", OBJECT),
    ({"tools": [pb.Tool(json=deep(9000))]}, JSON, None, OBJECT),
    ({"tools": [pb.Tool(json=" " * KB64 + "{}")]}, JSON, f"{KB64 + 2} bytes", OBJECT),
    (called(), "messages[0].tool_calls[0].name", "", "1 to 256 characters"),
    (called(name="a", id=LONG), "messages[0].tool_calls[0].id", "x" * 64, "1 to 256 characters"),
    (called(name="a", arguments="tell"), ARGUMENTS, "4 bytes that are no JSON", LONG_OBJECT),
    (called(name="a", arguments="7"), ARGUMENTS, "JSON, of type int", LONG_OBJECT),
    (called(name="a", arguments=deep(33)), ARGUMENTS, "more than 32 levels", LONG_OBJECT),
    (
        called(name="a", arguments=deep(KB64)),
        ARGUMENTS,
        f"{6 * KB64 + 1} bytes that are no JSON",
        LONG_OBJECT,
    ),
    (
        {"messages": [pb.Message(role="assistant", tool_calls=[CALL] * 600)] * 2},
        "messages.tool_calls",
        "1200 calls",
        "at most 1024 in all messages together",
    ),
    (message(role="user", tool_calls=[CALL]), "messages[0].tool_calls", "1 calls", "an assistant"),
    (message(role="user", tool_call_id="a"), "messages[0].tool_call_id", "a", "of role tool"),
    (
        message(role="tool", tool_call_id=LONG),
        "messages[0].tool_call_id",
        "x" * 64,
        "0 to 256 characters",
    ),
    (message(role="user", name=LONG), "messages[0].name", "x" * 64, "0 to 256 characters"),
    (message(role="r" * 65), "messages[0].role", "r" * 64, "1 to 64 characters"),
    (
        message(role="user", content="hi", null_content=True),
        "messages[0].content",
        "2 characters",
        "empty, with null_content",
    ),
    (kwargs("enable_thinking"), KWARGS, None, OBJECT),
    (kwargs("true"), KWARGS, "JSON, of type bool", OBJECT),
    (kwargs(deep(33)), KWARGS, "more than 32 levels", OBJECT),
    (kwargs('{"a": "' + "x" * KB64 + '"}'), KWARGS, f"{KB64 + 9} bytes", OBJECT),
    *(
        (kwargs(f'{{"{name}": 1}}'), f"{KWARGS}.{name}", name, "a field of its own: conversation.")
        for name in ("messages", "tools", "add_generation_prompt", "continue_final_message")
    ),
    (
        {"add_generation_prompt": True, "continue_final_message": True},
        "add_generation_prompt",
        True,
        "left out or false with continue_final_message",
    ),
]


@pytest.mark.parametrize(
    ("fields", "field", "value", "allowed"), CASES, ids=lambda part: str(part)[:40]
)
def test_the_refusal_names_field_value_and_range(
    fields: dict[str, Any], field: str, value: object, allowed: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(*fields.pop("messages", [USER]), **dict(fields))
    assert caught.value.field == f"conversation.{field}"
    assert value is None or caught.value.value == value
    assert allowed in caught.value.allowed


def test_everything_together_counts_as_the_size_of_a_conversation() -> None:
    filled = pb.ToolCall(name="a", arguments='{"a": "' + "x" * (KB64 - 9) + '"}')
    message = pb.Message(role="assistant", content="x", tool_calls=[filled] * 64)
    with pytest.raises(InvalidRequest, match="4194304 bytes") as caught:
        asked(message, tools=[TELL] * 128)
    assert caught.value.field == "conversation"


def test_a_template_without_a_place_for_tools_takes_none() -> None:
    with pytest.raises(InvalidRequest, match="no place for tools") as caught:
        asked(tools=[TELL], source=CHATML)
    assert (caught.value.field, caught.value.value) == ("conversation.tools", "1 tools")


def test_a_call_or_a_result_that_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="leaves out words") as caught:
        asked(USER, CALLING, RESULT, source=CHATML)
    assert caught.value.field == "conversation.messages[1].tool_calls"
    with pytest.raises(InvalidRequest, match="leaves out words") as caught:
        asked(USER, RESULT, source="{{ messages[0].content }}")
    assert (caught.value.field, caught.value.value) == ("conversation.messages[1].role", "tool")


def test_a_broken_template_takes_nothing_and_says_so() -> None:
    broken = with_template("{% for %}{{ tools }}")
    assert (broken.takes_tools, broken.template_kwargs) == (False, ())
    with pytest.raises(InvalidRequest, match="it is broken"):
        asked(source="{% for %}{{ tools }}")
