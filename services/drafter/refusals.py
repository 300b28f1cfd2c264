"""What a drafter takes: sessions that some method can draft for."""

from __future__ import annotations

from services.contract.errors import CallerError, InvalidRequest
from services.contract.sampling_checks import complaint
from services.contract.types import OpenDraft

MOST_CANDIDATES = 64


def check_open(opening: OpenDraft) -> None:
    """Raise CallerError for a session that can never be drafted."""
    if not opening.prompt:
        raise InvalidRequest("prompt", "no tokens", "one token or more")
    width = opening.num_candidates
    if not 1 <= width <= MOST_CANDIDATES:
        raise InvalidRequest("num_candidates", width, f"1 to {MOST_CANDIDATES}")
    if problem := complaint(opening.sampling, opening.mode):
        raise CallerError(problem)
