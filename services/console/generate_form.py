"""The response format of `paceline generate`, from its flags."""

from __future__ import annotations

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
