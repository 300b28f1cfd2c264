"""The response format of `paceline generate`, and its tools, from its flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.runtime.atomic_file import read_text
from services.runtime.options import option, options


@options
class Form:
    """At most one of five; none = any text."""

    json_schema: str | None = option(
        "The text is JSON of this schema.", None, section="Structured output", shown="TEXT|@FILE"
    )
    regex: str | None = option("The text matches this expression from start to end.", None)
    choice: list[str] | None = option(
        "The text is this, or another one given so; repeatable.", None
    )
    grammar: str | None = option(
        "The text follows this grammar, in Lark or GBNF.", None, shown="TEXT|@FILE"
    )
    structural_tag: str | None = option(
        "Parts of the text have the forms of this structural tag (JSON).", None, shown="TEXT|@FILE"
    )
    format_start: str | None = option(
        "Free text comes before the form, up to this one, such as </think>; auto = what ends the "
        "model's thoughts.",
        None,
        shown="TEXT|auto",
    )

    def arguments(self) -> dict[str, Any]:
        """What `Client.generate` takes.

        Raises StartError for more than one, for a start of none, and for a file that cannot be
        read.
        """
        named: dict[str, Any] = {name: getattr(self, name) for name in _FORMS}
        given = {name: value for name, value in named.items() if value is not None}
        for name in given.keys() & _WRITTEN:
            given[name] = _text(_flag(name), given[name])
        if len(given) > 1:
            flags = map(_flag, given)
            raise StartError(f"{' and '.join(flags)}: a text has one form; give one of them")
        if self.format_start is None:
            return given
        if not given:
            raise StartError("--format-start: there is no form to begin; give one")
        auto = self.format_start == "auto"
        return given | {"response_format_start": True if auto else self.format_start}


@options
class Templated:
    """What the model's chat template is given beside the messages."""

    tools: str | None = option(
        "What the model may call: a JSON list.", None, section="Conversation", shown="TEXT|@FILE"
    )
    chat_template_kwargs: str | None = option(
        'Variables for the chat template: a JSON object, such as {"enable_thinking": false}.',
        None,
        shown="TEXT|@FILE",
    )

    def arguments(self, raw: bool) -> dict[str, Any]:
        """What `Client.generate` takes.

        Raises StartError for what is no JSON of its kind, and for a prompt that is `raw`.
        """
        possible = {"tools": self.tools, "chat_template_kwargs": self.chat_template_kwargs}
        given = {name: value for name, value in possible.items() if value is not None}
        if given and raw:
            raise StartError(f"{' and '.join(map(_flag, given))}: only without --raw")
        return {name: _json(_flag(name), value, *_KINDS[name]) for name, value in given.items()}


_FORMS = ("json_schema", "regex", "choice", "grammar", "structural_tag")
_WRITTEN = {"json_schema", "grammar", "structural_tag"}
"""Those that may be in a file."""
_KINDS = {"tools": (list, "a list"), "chat_template_kwargs": (dict, "an object")}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _json(flag: str, given: str, kind: type, words: str) -> Any:
    try:
        value = json.loads(_text(flag, given))
    except ValueError as error:
        raise StartError(f"{flag}: not JSON: {error}") from error
    if not isinstance(value, kind):
        raise StartError(f"{flag}: not {words} as JSON")
    return value


def _text(flag: str, given: str) -> str:
    """What was given, or the file after an @."""
    return read_text(flag, Path(given[1:])) if given.startswith("@") else given
