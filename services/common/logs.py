"""Log lines: plain for people, JSON for collectors. Never a prompt or an output."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

Context = Callable[[], Mapping[str, str]]
"""Gives fields for every JSON line, such as the ids of the current trace."""


class JsonFormatter(logging.Formatter):
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


def setup_logging(
    *, json: bool = False, level: str = "INFO", context: Context | None = None
) -> None:
    """Send every log line to stderr, in place of what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(context) if json else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
