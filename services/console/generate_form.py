"""The response format of `paceline generate`, from its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from services.contract.errors import StartError

JsonSchema = Annotated[
    str | None,
    typer.Option(metavar="TEXT|@FILE", help="The text is JSON of this schema."),
]
Regex = Annotated[
    str | None, typer.Option(help="The text matches this expression from start to end.")
]
Choices = Annotated[
    list[str] | None,
    typer.Option("--choice", help="The text is this, or another one given so; repeatable."),
]


@dataclass(frozen=True, slots=True)
class Form:
    """At most one of three; none = any text."""

    json_schema: str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None

    def arguments(self) -> dict[str, Any]:
        """What `Client.generate` takes.

        Raises StartError for more than one, and for a file that cannot be read.
        """
        schema = None if self.json_schema is None else _text(self.json_schema)
        possible = {"json_schema": schema, "regex": self.regex, "choice": self.choice}
        given = {name: value for name, value in possible.items() if value is not None}
        if len(given) > 1:
            flags = [f"--{name.replace('_', '-')}" for name in given]
            raise StartError(f"{' and '.join(flags)}: a text has one form; give one of them")
        return given


def _text(schema: str) -> str:
    """A schema as it was given, or the file after an @."""
    if not schema.startswith("@"):
        return schema
    path = Path(schema[1:])
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise StartError(f"--json-schema: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise StartError(f"--json-schema: {path} is not text in UTF-8") from None
