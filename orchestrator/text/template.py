"""Chat templates: a model's Jinja source, run in a sandbox.

The environment is the one of transformers' `apply_chat_template`, so that a
conversation becomes the same text here and there; what a text may take is bounded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.utils import Namespace

from orchestrator.text.readings import Marked, Message, Reading, readings
from orchestrator.text.sandbox import BoundedEnvironment
from services.contract.errors import InvalidRequest

MOST_SOURCE = 128 * 1024
"""Characters of a template, which takes seconds to compile then. The largest known have 20 000."""
_SECONDS_TO_TRY = 1.0
"""Of processor time: no other reading of a conversation is begun then."""
_LONGEST_REASON = 200
_TOKENS = {f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")}
_USUAL = _TOKENS | {"messages", "tools", "add_generation_prompt"}
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given; the names are those of `apply_chat_template`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class TooLong(Exception):
    """A text of more than is allowed; `size` says how long it is, as far as is known.

    `allowed`: how long it may be, where that is no matter of the model's context.
    """

    def __init__(self, size: str, allowed: str = "") -> None:
        self.size, self.allowed = size, allowed
        super().__init__(size)


class ChatTemplate:
    """A compiled chat template. Raises jinja2.TemplateError when the source is broken."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        if len(source) > MOST_SOURCE:
            raise TemplateError(f"it has {len(source)} characters; allowed are {MOST_SOURCE}")
        environment = self._environment = _environment()
        try:
            with environment.rendering():
                self._template = environment.from_string(source)
                tree = environment.parse(source)
        except (SyntaxError, RecursionError) as error:  # what Python says of the code made of it
            raise TemplateError(f"{type(error).__name__}: it is nested too deeply") from error
        self._special_tokens = dict(special_tokens)
        read = meta.find_undeclared_variables(tree)
        self.takes_tools = "tools" in read
        """Whether it has a place for tools."""
        self.kwargs = tuple(sorted((read - _own_names(tree)) - _USUAL - environment.globals.keys()))
        """What it reads beyond what every template is given."""

    def render(self, conversation: Conversation, most: int | None = None) -> str:
        """The prompt of a conversation.

        Raises InvalidRequest with the template's own words when it refuses, and TooLong for a
        text of more than `most` characters.
        """
        try:
            with self._environment.rendering():
                return self._faithful(conversation, most)
        except (TooLong, InvalidRequest):
            raise
        except Exception as error:  # the template is foreign code: it may raise anything
            # Only the template's own words: what Python raises may quote a message.
            own = isinstance(error, TemplateError)
            reason = str(error) if own else type(error).__name__
            raise refused(conversation.messages, reason) from error

    def _faithful(self, conversation: Conversation, most: int | None) -> str:
        """By the first reading that the template takes whole; else what it said to the first."""
        marked, said = Marked(conversation.messages), None
        until = time.thread_time() + _SECONDS_TO_TRY
        for reading in readings(conversation.messages):
            try:
                text = self._text(conversation, reading(list(conversation.messages)), most)
                if marked:
                    self._check(conversation, marked, reading, most)
                return text
            except TooLong:
                raise
            except Exception as error:
                said = said or error
            if time.thread_time() > until:
                break
        assert said is not None
        raise said

    def _check(
        self, conversation: Conversation, marked: Marked, reading: Reading, most: int | None
    ) -> None:
        shown = replace(conversation, continue_final_message=False)
        lost = marked.lost(self._text(shown, reading(marked.messages), most))
        if lost is not None:
            raise _left_out(lost, conversation.messages[lost])

    def _text(self, conversation: Conversation, messages: list[Message], most: int | None) -> str:
        parts = self._template.generate(**self._given(conversation, messages))
        text = _joined(parts, most)
        if conversation.continue_final_message:
            return _left_open(text, messages[-1]["content"])
        return text

    def _given(self, conversation: Conversation, given: list[Message]) -> dict[str, Any]:
        messages = [_as_seen(message) for message in given]
        if conversation.continue_final_message:
            messages[-1]["content"] += _TAG
        return {
            **self._special_tokens,
            "documents": None,
            **conversation.kwargs,
            "messages": messages,
            "tools": conversation.tools,
            "add_generation_prompt": conversation.add_generation_prompt,
        }


def _own_names(tree: nodes.Template) -> set[str]:
    """The names that a template sets itself, without asking whether they are given."""
    set_here = {one.name for one in tree.find_all(nodes.Name) if one.ctx == "store"}
    asked_for = {
        one.node.name
        for one in tree.find_all((nodes.Test, nodes.Filter))
        if one.name in ("defined", "undefined", "default", "d") and isinstance(one.node, nodes.Name)
    }
    return set_here - asked_for


def _as_seen(message: Message) -> dict[str, Any]:
    """Templates know a message's reasoning by one of two names."""
    if (reasoning := message.get("reasoning_content")) is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _joined(parts: Iterable[str], most: int | None) -> str:
    kept, length = [], 0
    for part in parts:
        kept.append(part)
        length += len(part)
        if most is not None and length > most:
            raise TooLong(f"more than {most} characters")
    return "".join(kept)


def _left_open(text: str, last: str) -> str:
    """A text up to where its last message ends."""
    if _TAG.strip() not in text or last.strip() not in text:
        raise TemplateError("the last message is not in the prompt as it was given")
    kept, _, after = text.rpartition(_TAG.strip())
    # A template that trims messages has taken the blank of the mark, too.
    return kept if after.startswith(" ") else kept.rstrip()


def refused(messages: Sequence[Message], reason: str) -> InvalidRequest:
    """The error of a conversation that the model's template does not take."""
    roles = ", ".join(message["role"] for message in messages[:8])
    value = f"{len(messages)} messages ({roles})"
    allowed = f"what the model's chat template takes: {reason[:_LONGEST_REASON]}"
    return InvalidRequest("conversation", value, allowed)


def _left_out(index: int, message: Message) -> InvalidRequest:
    """The error of a message of which the model's template writes not all."""
    field, calls = f"conversation.messages[{index}]", message.get("tool_calls")
    if calls:
        allowed = "what the model's chat template writes: it leaves out words of them"
        return InvalidRequest(f"{field}.tool_calls", f"{len(calls)} calls", allowed)
    allowed = "one that the model's chat template writes: it leaves out words of this one"
    return InvalidRequest(f"{field}.role", message["role"], allowed)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks assistant text; it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict(...)` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """A namespace that takes no underscore names, which reach into the interpreter."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Like jinja2's own, so that `namespace(self=...)` works.
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(args[0], attributes)

    def __repr__(self) -> str:
        raise SecurityError("a namespace is no text")  # namespaces may be in one another

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.add_filter("tojson", _to_json)
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment
