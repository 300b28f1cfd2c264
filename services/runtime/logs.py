"""Log lines: plain for people, JSON for collectors. Never a prompt or an output.

Of an exception a line has the type and the place. Its message is written only for kinds
about the machine or our own code: `KeyError`, `ValueError` and those of libraries may
quote the text that they failed on.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from services.contract.errors import CallerError, PacelineError, StartError

Context = Callable[[], Mapping[str, str]]
"""Gives fields for every JSON line, such as the ids of the current trace."""


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

# RuntimeError: how torch tells of memory, devices and shapes.
_SPEAKS_OF_NO_TEXT = (PacelineError, OSError, MemoryError, RuntimeError)
_LONGEST_CHAIN = 8


def explained(error: BaseException) -> str:
    """Where `error` and its causes were raised, with those messages that are safe to log."""
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None and len(parts) < _LONGEST_CHAIN:
        frames = "".join(traceback.format_tb(link.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{_named(link)}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n\nwhich led to:\n\n".join(reversed(parts))


def in_a_line(error: BaseException) -> str:
    """The type of `error` and, if safe to log, its message."""
    return " ".join((str(error) if isinstance(error, StartError) else _named(error)).split())


def _named(error: BaseException) -> str:
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    fit = isinstance(error, _SPEAKS_OF_NO_TEXT) and not isinstance(error, CallerError)
    return f"{name}: {error}" if fit else name


class PlainFormatter(logging.Formatter):
    """One line a record, and where an exception came from below it."""

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802 - logging's name
        """The traceback without quotes of any text."""
        return explained(ei[1]) if ei[1] is not None else ""


class JsonFormatter(PlainFormatter):
    """One JSON object a line: time, level, logger, message, exception, context."""

    def __init__(self, context: Context | None = None) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """The line for `record`."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line | dict(self._context() if self._context else {}))


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A line that cannot be written is dropped: Python's own complaint would quote it."""


def setup_logging(
    *, json: bool = False, level: str = "INFO", context: Context | None = None
) -> None:
    """Send every log line to stderr, replacing earlier handlers."""
    handler = _Handler(sys.stderr)
    plain = PlainFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(context) if json else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
