"""Conversations become what transformers makes of them, by the templates that people have.

Each goes the way of a client's request; no word of a call, a result or a developer is lost.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
from paceline._request import build_request

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.frontdoor.requests.conversation import read_conversation
from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest
from services.contract.types import TokenizerBundle
from services.engine.checkpoint.bundle import make_bundle
from tests.models import tiny_model, tiny_tokenizer
from tests.published_templates import published

pytest.importorskip("transformers")
Turns = list[dict[str, Any]]

ASKED, BRIEF = {"role": "user", "content": "Weather?"}, {"role": "system", "content": "Be brief."}


def tool(name: str, argument: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": "which"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    function = {"name": name, "description": f"The {name}", "parameters": parameters}
    return {"type": "function", "function": function}


def call(name: str, id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", **more, "tool_calls": list(calls)}


def result(content: str, id: str = "abcdefghi", name: str = "weather") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id, "name": name}


TOOLS = [tool("weather", "city"), tool("clock", "zone")]
OSAKA = call("weather", "abcdefghi", city="osakaword", days=24671)
ZONE = call("clock", "ABCDEFGH9", zone="zoneword")
LONG_ID = "call_0123456789abcdef"
LONG = call("weather", LONG_ID, city="osakaword", days=24671)
CALLED, ANSWER = ("osakaword", "24671"), ("resultword",)


class Kind(NamedTuple):
    """A conversation, and the words that no prompt of it is without."""

    talk: Turns
    tools: list[dict[str, Any]] | None = None
    words: tuple[str, ...] = ()


def called(*calls: dict[str, Any], words: tuple[str, ...] = (), **more: Any) -> Kind:
    results = [result("resultword", calls[0]["id"])]
    results += [result("secondword", one["id"], one["function"]["name"]) for one in calls[1:]]
    return Kind([ASKED, calling(*calls, **more), *results], TOOLS, (*CALLED, *ANSWER, *words))


KINDS = {
    "a question": Kind([ASKED]),
    "a system": Kind([BRIEF, ASKED]),
    "turns": Kind([BRIEF, ASKED, {"role": "assistant", "content": "Where?"}, ASKED]),
    "tools": Kind([BRIEF, ASKED], TOOLS),
    "null beside a call": called(OSAKA, content=None),
    "no content beside a call": called(OSAKA),
    "an empty content beside a call": called(OSAKA, content=""),
    "a text beside a call": called(OSAKA, content="Let me see."),
    "two calls": called(OSAKA, ZONE, content="", words=("zoneword", "secondword")),
    "a long id": called(LONG, content=""),
    "an answer": Kind(
        [*called(OSAKA, content=None).talk, {"role": "assistant", "content": "Mild."}, ASKED],
        TOOLS,
        (*CALLED, *ANSWER),
    ),
    "thoughts": called(OSAKA, content=None, reasoning_content="The city first."),
    "a developer": Kind(
        [{"role": "developer", "content": "briefword"}, ASKED], words=("briefword",)
    ),
}


@cache
def bundle() -> TokenizerBundle:
    return make_bundle(tiny_tokenizer(), tiny_model("llama"))


@cache
def with_template(source: str) -> Tokenizer:
    return Tokenizer(replace(bundle(), chat_template=source))


def ours(source: str, kind: Kind) -> str | None:
    """The prompt of a client's request; None: refused."""
    asked = build_request(None, None, kind.talk, None, {"tools": kind.tools} if kind.tools else {})
    conversation = incoming(asked).read().conversation
    assert conversation is not None
    try:
        return with_template(source).render(read_conversation(conversation))
    except InvalidRequest:
        return None


def of_transformers(source: str, kind: Kind) -> str | None:
    """None: it raises."""
    try:
        return str(
            tiny_tokenizer().apply_chat_template(
                kind.talk,
                tools=kind.tools,
                chat_template=source,
                add_generation_prompt=True,
                tokenize=False,
            )
        )
    except Exception:  # a template's own words, or what Python says of its code
        return None


def whole(text: str | None, kind: Kind) -> bool:
    return text is not None and all(word in text for word in kind.words)


@pytest.mark.parametrize("name", KINDS)
def test_the_prompt_is_that_of_transformers_where_it_has_every_word(name: str) -> None:
    kind, compared = KINDS[name], 0
    for model, source in published().items():
        if whole(expected := of_transformers(source, kind), kind):
            assert ours(source, kind) == expected, model
            compared += 1
    assert compared > (10 if name == "a developer" else 35)


@pytest.mark.parametrize("name", KINDS)
def test_no_word_of_a_call_or_a_result_is_lost_in_silence(name: str) -> None:
    kind = KINDS[name]
    for model, source in published().items():
        text = ours(source, kind)
        assert text is None or whole(text, kind), model
        assert text is None or "None" not in text or "None" in source, model


def test_a_developer_is_heard_wherever_a_system_is() -> None:
    for model, source in published().items():
        if ours(source, KINDS["a system"]) is not None:
            assert ours(source, KINDS["a developer"]) is not None, model


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "an empty content beside a call"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "a text beside a call"),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "two calls"),
        ("meetkai-functionary-medium-v3.2", "a text beside a call"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "a long id"),
        ("Qwen-Qwen3-0.6B", "null beside a call"),
    ],
)
def test_what_transformers_loses_or_refuses_is_said_in_a_way_that_the_template_takes(
    model: str, kind: str
) -> None:
    source = published()[model]
    assert not whole(of_transformers(source, KINDS[kind]), KINDS[kind])
    assert whole(ours(source, KINDS[kind]), KINDS[kind])
