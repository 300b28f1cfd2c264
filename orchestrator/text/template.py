"""Chat templates: a model's Jinja source, run in jinja2's immutable sandbox.

The environment is the one of transformers' `apply_chat_template`, so that a
conversation becomes the same text here and there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from services.contract.errors import InvalidRequest

# (role, content)
Message = tuple[str, str]

_LONGEST_REASON = 200


class ChatTemplate:
    """A compiled chat template. Raises jinja2.TemplateError when the source is broken."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Message]) -> Iterator[str]:
        """The prompt of a conversation, up to where the assistant speaks, in parts.

        Raises InvalidRequest with the template's own words when it refuses.
        """
        try:
            yield from self._template.generate(
                messages=[{"role": role, "content": content} for role, content in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except Exception as error:  # the template is foreign code: it may raise anything
            # Only the template's own words: what Python raises may quote a message.
            own = isinstance(error, TemplateError)
            raise refused(messages, str(error) if own else type(error).__name__) from error


def refused(messages: Sequence[Message], reason: str) -> InvalidRequest:
    """The error of a conversation that the model's template does not take."""
    roles = ", ".join(role for role, _ in messages[:8])
    value = f"{len(messages)} messages ({roles})"
    allowed = f"what the model's chat template takes: {reason[:_LONGEST_REASON]}"
    return InvalidRequest("conversation", value, allowed)


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


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment
