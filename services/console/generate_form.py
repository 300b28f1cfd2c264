"""The response format of `paceline generate`, and its tools, from its flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.runtime.options import option, options


@options
class Form:
    """At most one of three; none = any text."""

    json_schema: str | None = option(
        "The text is JSON of this schema.", None, section="Structured output", shown="TEXT|@FILE"
    )
    regex: str | None = option("The text matches this expression from start to end.", None)
    choice: list[str] | None = option(
        "The text is this, or another one given so; repeatable.", None
    )

    def arguments(self) -> dict[str, Any]:
        """What `Client.generate` takes.

        Raises StartError for more than one, and for a file that cannot be read.
        """
        schema = _text("--json-schema", self.json_schema)
        possible = {"json_schema": schema, "regex": self.regex, "choice": self.choice}
        given = {name: value for name, value in possible.items() if value is not None}
        if len(given) > 1:
            flags = map(_flag, given)
            raise StartError(f"{' and '.join(flags)}: a text has one form; give one of them")
        return given


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
        return {name: _json(_flag(name), value, _KINDS[name]) for name, value in given.items()}


_KINDS = {"tools": "list", "chat_template_kwargs": "dict"}
_WORDS = {"list": "a list", "dict": "an object"}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _json(flag: str, given: str, kind: str) -> Any:
    try:
        value = json.loads(_text(flag, given) or "")
    except ValueError as error:
        raise StartError(f"{flag}: not JSON: {error}") from error
    if type(value).__name__ != kind:
        raise StartError(f"{flag}: not {_WORDS[kind]} as JSON")
    return value


def _text(flag: str, given: str | None) -> str | None:
    """What was given, or the file after an @."""
    if given is None or not given.startswith("@"):
        return given
    path = Path(given[1:])
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise StartError(f"{flag}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise StartError(f"{flag}: {path} is not text in UTF-8") from None
