"""The flags of a command in sections, as its `--help` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand


def sectioned(sections: Mapping[str, tuple[str, ...]]) -> type[TyperCommand]:
    """A command whose `--help` shows these parameters by section, all others at the end."""

    class Sectioned(TyperCommand):
        """A command that knows its sections."""

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """Write a section for each title."""
            params = {str(param.name): param for param in self.get_params(ctx)}
            words = [name for name, one in params.items() if one.param_type_name == "argument"]
            listed = {name for names in sections.values() for name in names} | set(words)
            rest = [name for name in params if name not in listed]
            for title, names in (("Arguments", words), *sections.items(), ("Other", rest)):
                told = [params[name].get_help_record(ctx) for name in names]
                if rows := [row for row in told if row is not None]:
                    with formatter.section(title):
                        formatter.write_dl(rows)

    return Sectioned
