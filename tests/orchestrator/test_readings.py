"""What a template does not take as it is reaches it in another way, or is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.text import Conversation, Tokenizer
from orchestrator.text import template as template_module
from orchestrator.text.template import MOST_SOURCE, ChatTemplate
from services.contract.errors import InvalidRequest
from services.contract.types import NamedText
from tests.orchestrator.text_kit import bundle, byte_level_backend

TOOL = {"type": "function", "function": {"name": "tell"}}
ASKED = {"role": "user", "content": "hi"}


def calling(id: str = "call-1", **more: Any) -> dict[str, Any]:
    function = {"name": "tell", "arguments": {"city": "Oslo", "n": [7, None]}}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", **more, "tool_calls": [call]}


def result(of: str = "call-1") -> dict[str, Any]:
    return {"role": "tool", "content": "cold", "tool_call_id": of}


def rendered(source: str, *talk: dict[str, Any], **more: Any) -> str:
    return ChatTemplate(source, {}).render(Conversation(talk, **more))


EACH = "{% for message in messages %}"
CALL = "{% for call in message.tool_calls %}<{{ call.function.name }} "
TEXT = EACH + CALL + "{{ '' + call.function.arguments }}>{% endfor %}{% endfor %}"
TOJSON = "{{ call.function.arguments | tojson }}>{% endfor %}"
WRITTEN = '<tell {"city": "Oslo", "n": [7, null]}>'
ASKS_FOR_NULL = (
    EACH
    + "[{{ message.role }}]{% if message.tool_calls and message['content'] is none %}"
    + CALL
    + TOJSON
    + "{% else %}{{ '' + message['content'] }}{% endif %}{% endfor %}"
)


def test_arguments_are_text_where_a_mapping_fails() -> None:
    assert rendered(TEXT, calling(content="")) == WRITTEN
    assert rendered(EACH + CALL + TOJSON + "{% endfor %}", calling(content="")) == WRITTEN


@pytest.mark.parametrize("content", [{}, {"content": ""}, {"content": None}])
def test_who_asks_for_a_null_beside_calls_gets_one(content: dict[str, Any]) -> None:
    talk = [ASKED, calling(**content), result()]
    assert rendered(ASKS_FOR_NULL, *talk) == f"[user]hi[assistant]{WRITTEN}[tool]cold"


def test_what_was_said_beside_calls_is_a_turn_before_where_a_template_takes_one_of_both() -> None:
    said = calling(content="Let me see.", reasoning_content="so")
    text = rendered(
        ASKS_FOR_NULL + "{{ messages | map(attribute='reasoning_content') | list }}", said
    )
    assert text == f"[assistant]Let me see.[assistant]{WRITTEN}['so', Undefined]"


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ '' + messages[0].content }}"])
def test_no_content_is_no_word(source: str) -> None:
    assert rendered(source, {"role": "assistant"}) == ""


SYSTEM_ALONE = (
    EACH + "{% if message.role == 'system' %}{{ message.content }}{% endif %}{% endfor %}"
)
REFUSES = (
    "{% if messages[0].role not in ('system', 'user') %}{{ raise_exception('who?') }}{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (EACH + "{{ message.role }}: {{ message.content }};{% endfor %}", "developer: be brief;"),
        (SYSTEM_ALONE, "be brief"),
        (REFUSES + SYSTEM_ALONE, "be brief"),
    ],
)
def test_a_developer_is_the_system_where_a_template_knows_none(source: str, text: str) -> None:
    assert rendered(source, {"role": "developer", "content": "be brief"}) == text


def test_another_role_is_handed_on_or_refused() -> None:
    said = {"role": "observation", "content": "cold"}
    assert rendered("{{ messages[0].role }}", said | {"content": ""}) == "observation"
    with pytest.raises(InvalidRequest, match="leaves out words") as caught:
        rendered(SYSTEM_ALONE, said)
    assert (caught.value.field, caught.value.value) == (
        "conversation.messages[0].role",
        "observation",
    )


IDS = (
    EACH
    + "{% for call in message.tool_calls %}{% if call.id | length != 9 %}"
    + "{{ raise_exception('nine letters') }}{% endif %}{{ call.id }}"
    + "{{ call.function }}{% endfor %} {{ message.tool_call_id }} {{ message.content }}{% endfor %}"
)


def test_ids_are_nine_letters_and_digits_where_a_template_demands_it() -> None:
    first, other = (
        rendered(IDS, calling(id, content=""), result(id)) for id in ("call_0123456789", "call_1")
    )
    id = first[:9]
    assert id.isalnum()
    assert f" {id} cold" in first
    assert other[:9] != id
    kept = rendered(IDS, calling("abcdEFG89", content=""), result("abcdEFG89"))
    assert kept.startswith("abcdEFG89")
    assert "call_1" in rendered(IDS.replace("!= 9", "> 99"), calling("call_1", content=""))


@pytest.mark.parametrize(
    "of_a_call",
    [
        "",
        "{{ call.function.name }}",
        "{{ call.function.arguments }}",
        "{{ call.function.name }}{{ call.function.arguments.city }}",
    ],
)
def test_a_call_of_which_a_word_is_left_out_is_refused(of_a_call: str) -> None:
    calls = "{% for call in message.tool_calls %}" + of_a_call + "{% endfor %}"
    leaves_out = EACH + "{{ message.content }}" + calls + "{% endfor %}"
    talk = [{"role": "user", "content": "tell Oslo [7, None]"}, calling(content="")]
    with pytest.raises(InvalidRequest, match="leaves out words") as caught:
        rendered(leaves_out, *talk)
    assert (caught.value.field, caught.value.value) == (
        "conversation.messages[1].tool_calls",
        "1 calls",
    )


def test_the_first_refusal_is_told() -> None:
    source = "{{ raise_exception(messages[0].role ~ messages[0].content) }}"
    with pytest.raises(InvalidRequest, match="takes: developerx"):
        rendered(source, {"role": "developer", "content": "x"})


def test_calls_beyond_counting_are_taken_to_be_treated_alike() -> None:
    many = calling(content="")
    many["tool_calls"][0]["function"]["arguments"] = {"all": list(range(20_000))}
    assert rendered(TEXT, many).endswith("19999]}>")


def test_what_takes_long_is_not_tried_in_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    developer = {"role": "developer", "content": "x"}
    source = "{% if messages[0].role == 'developer' %}{{ raise_exception('no') }}{% endif %}x"
    source += "{{ messages[0].content }}"
    assert rendered(source, developer) == "xx"
    monkeypatch.setattr(template_module, "_SECONDS_TO_TRY", -1.0)
    with pytest.raises(InvalidRequest, match="takes: no"):
        rendered(source, developer)


def named(*templates: tuple[str, str], default: str = "", **more: Any) -> Tokenizer:
    by_name = tuple(NamedText(*one) for one in templates)
    given = bundle(byte_level_backend(), default)
    return Tokenizer(replace(given, chat_templates=by_name, **more))


def test_the_template_named_tool_use_is_that_of_conversations_with_tools() -> None:
    both = named(
        ("tool_use", "{{ tools | length }} tools{{ extra }}"), ("rag", "no"), default="plain"
    )
    assert both.takes_tools
    assert both.template_kwargs == ("extra",)
    assert both.render(Conversation([ASKED])) == "plain"
    assert both.render(Conversation([ASKED], tools=[TOOL])) == "1 tools"
    assert named(("rag", "no"), default="{{ tools }}").takes_tools


def test_without_a_default_template_what_there_is_is_named() -> None:
    model = named(("tool_use", "tools"), ("rag", "no"))
    assert model.has_chat_template
    assert model.render(Conversation([ASKED], tools=[TOOL])) == "tools"
    with pytest.raises(InvalidRequest, match="none named default, but tool_use, rag"):
        model.render(Conversation([ASKED]))


def test_a_template_may_write_every_special_token() -> None:
    tokens = (NamedText("pad_token", "<pad>"), NamedText("unk_token", "<unk>"))
    model = named(default="{{ pad_token }}{{ unk_token }}{{ bos_token }}", special_tokens=tokens)
    assert model.render(Conversation([ASKED])) == "<pad><unk><|im_start|>"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ messages }}" * 70_000, f"it has 980000 characters; allowed are {MOST_SOURCE}"),
        ("{{ messages | shout }}", "No filter named 'shout'"),
        ("{{ messages is loud }}", "No test named 'loud'"),
        ("{% shout %}", "unknown tag 'shout'"),
    ],
)
def test_a_template_that_cannot_be_used_is_told_of_once_and_refused_each_time(
    source: str, said: str
) -> None:
    model = named(default=source)
    [fault] = model.broken_templates()
    assert fault.startswith("the chat template default is broken: ")
    assert said in fault
    assert (model.has_chat_template, model.takes_tools) == (True, False)
    with pytest.raises(InvalidRequest, match="it is broken") as caught:
        model.render(Conversation([ASKED]))
    assert said in caught.value.allowed


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% include 'other.jinja' %}", "it asks for another template, 'other.jinja'"),
        ("{% extends 'other' %}", "it asks for another template, 'other'"),
        ("{% import 'other' as o %}", "it asks for another template, 'other'"),
        ("{{ shout(messages) }}", "'shout' is undefined"),
        ("{{ world.peace }}", "'world' is undefined"),
        ("{{ messages[7].content }}", "has no element 7"),
    ],
)
def test_a_template_that_names_what_is_not_there_says_so(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rendered(source, ASKED)
    assert said in caught.value.allowed
