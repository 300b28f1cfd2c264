"""Where a response format may begin, as far as it can be told without a tokenizer."""

from __future__ import annotations

from services.contract.types import FormatMarker

MOST_MARKER_CHARACTERS = 256
MOST_MARKER_IDS = 32


def marker_problem(start: FormatMarker) -> str:
    """Why no format can begin there; empty if one can."""
    if len(start.text) > MOST_MARKER_CHARACTERS:
        return f"{len(start.text)} characters, more than {MOST_MARKER_CHARACTERS}"
    if len(start.token_ids) > MOST_MARKER_IDS:
        return f"{len(start.token_ids)} ids, more than {MOST_MARKER_IDS}"
    if bool(start.text) == bool(start.token_ids):
        return "not one of text and token_ids" if start.text else "empty"
    return ""
