"""Conversations with tools become the prompts that transformers makes of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from orchestrator.text import Conversation
from orchestrator.text.template import ChatTemplate
from services.contract.errors import InvalidRequest
from tests.orchestrator.chat_templates import ALL, ASKED, CLOCK, TAKE_TOOLS, TALKS, WEATHER

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, SPECIAL)


def ours(source: str, talk: Conversation) -> str | None:
    """None: refused."""
    try:
        return compiled(source).render(talk)
    except InvalidRequest:
        return None


def theirs(source: str, talk: Conversation) -> str | None:
    """What transformers makes of it; None: it raises."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    try:
        [text], _ = utils.render_jinja_template(
            [[dict(message) for message in talk.messages]],
            tools=talk.tools,
            chat_template=source,
            add_generation_prompt=talk.add_generation_prompt,
            continue_final_message=talk.continue_final_message,
            **SPECIAL | dict(talk.kwargs),
        )
    except Exception:  # a template's own words, or what Python says of its code
        return None
    return str(text)


KWARGS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False},
    {"enable_thinking": True, "date_string": "May", "tools_in_user_message": False},
    {"documents": [{"title": "the law", "text": "x"}], "unknown": 1, "bos_token": "^"},
]


CALLING = {name for name, talk in TALKS.items() if any("tool_calls" in one for one in talk)}
PAIRS = [(name, talk) for name in ALL for talk in TALKS]
LOST = [(name, talk) for name, talk in PAIRS if talk in CALLING and name not in TAKE_TOOLS]


@pytest.mark.parametrize(("name", "talk"), [pair for pair in PAIRS if pair not in LOST])
def test_the_prompt_is_that_of_transformers(name: str, talk: str) -> None:
    for tools in (None, [WEATHER], [WEATHER, CLOCK]):
        for kwargs in KWARGS:
            for prompt, open_end in ((True, False), (False, False), (False, True)):
                one = Conversation(TALKS[talk], tools, kwargs, prompt, open_end)
                assert ours(ALL[name], one) == theirs(ALL[name], one)


@pytest.mark.parametrize(("name", "talk"), LOST)
def test_a_template_that_leaves_calls_out_takes_none(name: str, talk: str) -> None:
    one = Conversation(TALKS[talk])
    assert "weather" not in (theirs(ALL[name], one) or "")
    assert ours(ALL[name], one) is None


@pytest.mark.parametrize("name", TAKE_TOOLS)
def test_each_family_has_tools_and_results_in_its_prompt(name: str) -> None:
    text = ours(TAKE_TOOLS[name], Conversation(TALKS["a call"], [WEATHER]))
    assert text is not None
    assert all(part in text for part in ("weather", "Ōsaka", "5"))


def test_a_template_that_refuses_is_heard_in_both() -> None:
    talk = Conversation([ASKED, {"role": "user", "content": "again"}])
    assert ours(ALL["brackets"], talk) is None is theirs(ALL["brackets"], talk)
    assert ours(ALL["dated"], Conversation(TALKS["calls"])) is None


@pytest.mark.parametrize(
    ("name", "takes_tools", "kwargs"),
    [
        ("chatml", False, ()),
        ("calls in tags", True, ()),
        ("thinks", False, ("enable_thinking",)),
        ("dated", True, ("custom_tools", "date_string", "tools_in_user_message")),
        ("brackets", True, ("system_message",)),
        ("macros", True, ()),
        ("in one line", True, ("documents",)),
    ],
)
def test_what_a_template_reads_is_known(name: str, takes_tools: bool, kwargs: Any) -> None:
    template = compiled(ALL[name])
    assert (template.takes_tools, template.kwargs) == (takes_tools, kwargs)


def test_a_message_goes_on_where_it_ends() -> None:
    said = [ASKED, {"role": "assistant", "content": "The law is "}]
    open_end = Conversation(said, add_generation_prompt=False, continue_final_message=True)
    for name, source in ALL.items():
        text = ours(source, open_end)
        assert text == theirs(source, open_end)
        assert text is not None, name
        assert text.endswith(("The law is", "The law is "))


def test_a_message_that_the_template_leaves_out_does_not_go_on() -> None:
    open_end = Conversation([ASKED], add_generation_prompt=False, continue_final_message=True)
    assert ours("{{ messages[0].role }}", open_end) is None
    assert ours("{{ messages[0].content | upper }}", open_end) is None
