"""What a drafter takes: sessions that some method can draft for, and what it says of others."""

from __future__ import annotations

import logging

from services.contract.errors import (
    CallerError,
    InvalidRequest,
    NotFound,
    Overloaded,
    out_of_memory,
)
from services.contract.sampling_checks import complaint
from services.contract.types import FailureReason, OpenDraft

_log = logging.getLogger(__name__)

MOST_CANDIDATES = 64
MOST_TEXT = 1 << 25
"""Tokens of all texts, as long as they may get: methods without K/V have no other bound."""


def check_open(opening: OpenDraft) -> None:
    """Raise CallerError for a session that can never be drafted."""
    if not opening.prompt:
        raise InvalidRequest("prompt", "no tokens", "one token or more")
    width = opening.num_candidates
    if not 1 <= width <= MOST_CANDIDATES:
        raise InvalidRequest("num_candidates", width, f"1 to {MOST_CANDIDATES}")
    if problem := complaint(opening.sampling, opening.mode):
        raise CallerError(problem)


def told(error: Exception) -> tuple[FailureReason, str]:
    """What an orchestrator is told of the error that ended a session; ours are logged."""
    reason, message = _reason(error), str(error)
    if out_of_memory(error):
        message = "the device has no memory left for this session"
    elif reason is FailureReason.INTERNAL:
        _log.error("a draft session failed", exc_info=error)
        message = f"drafting failed ({type(error).__name__})"
    return reason, message


def _reason(error: Exception) -> FailureReason:
    match error:
        case Overloaded():
            return FailureReason.CAPACITY
        case NotFound():
            return FailureReason.UNKNOWN_SESSION
        case CallerError():
            return FailureReason.INVALID
    return FailureReason.CAPACITY if out_of_memory(error) else FailureReason.INTERNAL
