"""What a start is about: one line in the log for each part of it that may take seconds."""

from __future__ import annotations

import logging

STAGE = "starting: "
"""Marks these lines: who started the process tells what comes behind."""

_log = logging.getLogger(__name__)


def stage(what: str) -> None:
    """From now on the start is about this."""
    _log.info("%s%s", STAGE, what)
