"""The `paceline` command in this process, as a person types it."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any
from unittest.mock import patch

from services.console import main


@dataclass(frozen=True, slots=True)
class Done:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def paceline(*words: str, **environment: str) -> Done:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, environment):
        try:
            status: Any = main.run(words)
        except SystemExit as end:
            status = end.code
    return Done(status, out.getvalue(), err.getvalue())


def read(name: str, *words: str) -> Any:
    """The options of a command that is not run."""
    flags = main.flags_of(name)
    flags.parse(words)
    return flags.read(main.COMMANDS[name].kind())
