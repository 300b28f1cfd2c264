"""A finished session read back from the store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

from orchestrator import replies
from orchestrator.core.events import Ending
from orchestrator.ports import StoredRound, StoredSession
from orchestrator.requests import load_spec
from orchestrator.text import Tokenizer
from orchestrator.totals import SpecTotals
from services.common.errors import DataLoss, OffsetOutOfRange
from services.common.types import FinishReason, SessionStatus


async def finished_session(
    stored: StoredSession,
    rounds: Sequence[StoredRound],
    tokenizer: Tokenizer,
    offset: int,
) -> AsyncIterator[replies.Event]:
    """The events of a session that has ended, from an output offset on.

    Raises DataLoss for an ephemeral session, of which no text was kept, and
    OffsetOutOfRange.
    """
    if len(stored.committed) != stored.committed_len or stored.finish_reason is None:
        raise DataLoss("the session has ended and was ephemeral: its text was not kept")
    if offset > stored.committed_len:
        raise OffsetOutOfRange(
            f"offset: {offset} lies beyond the {stored.committed_len} tokens of the output"
        )
    spec = load_spec(stored.resolved, stored.prompt)
    text = spec.text_stream(tokenizer)
    text.append(stored.committed, finished=True)
    yield replies.started(spec)
    if offset < stored.committed_len:
        yield replies.chunk(
            offset,
            stored.committed[offset:],
            text.pieces(offset),
            include_rounds=spec.include_rounds,
        )
    yield replies.complete(
        _ending(stored), stored.prompt_len, stored.committed_len, text.text, _totals(rounds)
    )


def implied_ending(stored: StoredSession, tokenizer: Tokenizer) -> Ending | None:
    """How the committed text ends the output, where the owner died before it said so."""
    if stored.status is SessionStatus.FINISHED or not stored.committed:
        return None
    spec = load_spec(stored.resolved, stored.prompt)
    text = spec.text_stream(tokenizer)
    text.append(stored.committed)
    if text.state.stop:
        return Ending(FinishReason.STOP, matched_text=text.state.stop)
    last = stored.committed[-1]
    if last in spec.sampling.stop_token_ids:
        return Ending(FinishReason.STOP, matched_token=last)
    if len(stored.committed) >= spec.sampling.max_tokens:
        return Ending(FinishReason.LENGTH)
    return None


def _ending(stored: StoredSession) -> Ending:
    assert stored.finish_reason is not None
    stop = stored.matched_stop
    if isinstance(stop, int):
        return Ending(stored.finish_reason, matched_token=stop)
    return Ending(stored.finish_reason, matched_text=stop or "")


def _totals(rounds: Sequence[StoredRound]) -> SpecTotals:
    """Sums over the rounds that are still kept."""
    totals = SpecTotals()
    for stored in rounds:
        kept = json.loads(stored.record or b"{}")
        totals.count(stored.tokens, kept.get("draft_tokens", 0), kept.get("accepted_tokens", 0))
    return totals
