"""Where a response format begins, from what a request says of it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.frontdoor.requests.checks import require
from orchestrator.frontdoor.requests.inputs import require_in_vocabulary
from orchestrator.frontdoor.requests.request import FormatStartRequest, SamplingRequest
from orchestrator.session.served_model import ServedModel
from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest
from services.contract.format_markers import (
    MOST_MARKER_CHARACTERS,
    MOST_MARKER_IDS,
    marker_problem,
)
from services.contract.types import RESPONSE_START, FormatMarker

FIELD = "sampling.response_format_start"
_ALLOWED = {
    "text": f"1 to {MOST_MARKER_CHARACTERS} characters",
    "token_ids": f"1 to {MOST_MARKER_IDS} ids",
}


def check_format_start(params: SamplingRequest, model: ServedModel) -> None:
    """What can be refused before the prompt is looked at."""
    asked = params.response_format_start
    if asked is None or asked.if_thinking:
        return
    if params.response_format is None:
        raise InvalidRequest(FIELD, "set", "left out (there is no response format to begin)")
    if not begins_later(model):
        allowed = "left out (no verifier here begins a format later than the output)"
        raise InvalidRequest(FIELD, "set", allowed)
    marker = _marker(asked)
    if marker is None:
        require(asked.auto, FIELD, None, "one of text, token_ids and auto (true)")
        return
    part = "text" if asked.text is not None else "token_ids"
    if complaint := marker_problem(marker):
        raise InvalidRequest(f"{FIELD}.{part}", complaint, _ALLOWED[part])
    require_in_vocabulary(f"{FIELD}.token_ids", marker.token_ids, model)


def format_start(
    params: SamplingRequest,
    model: ServedModel,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    ends: Sequence[int],
) -> FormatMarker | None:
    """The marker that a checked request names; None: its format holds from the first token.

    `ends`: tokens that end the text.
    """
    asked = params.response_format_start
    if asked is None:
        return None
    if (marker := _marker(asked)) is not None:
        both = sorted({*marker.token_ids} & {*ends})
        allowed = "no token that ends the text"
        require(not both, f"{FIELD}.token_ids", f"{both[:1]}", allowed)
        return marker
    known = tokenizer.reasoning
    if asked.if_thinking and not (known and begins_later(model) and known.is_open(prompt)):
        return None
    if known is None:
        allowed = "text or token_ids (the model tells of nothing that ends its thoughts)"
        raise InvalidRequest(f"{FIELD}.auto", "true", allowed)
    if known.end_id is not None:
        return FormatMarker(token_ids=(known.end_id,))
    return FormatMarker(text=known.end)


def begins_later(model: ServedModel) -> bool:
    """Whether some verifier can begin a format later than the output."""
    return RESPONSE_START in model.formats


def _marker(asked: FormatStartRequest) -> FormatMarker | None:
    """The one that is written out."""
    if asked.text is not None:
        return FormatMarker(text=asked.text)
    if asked.token_ids is not None:
        # One more than is allowed is enough to refuse them.
        return FormatMarker(token_ids=tuple(asked.token_ids[: MOST_MARKER_IDS + 1]))
    return None
