"""Sessions read back from the store: one that has ended, or one to go on with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import chain

from orchestrator import replies
from orchestrator.core.events import Ending, SuspendReason
from orchestrator.kept_rounds import load_round
from orchestrator.output import Beyond
from orchestrator.ports import GivenUp, NewSession, StoredRound, StoredSession
from orchestrator.requests import SessionSpec, load_spec
from orchestrator.text import Tokenizer
from orchestrator.totals import SpecTotals
from services.common.errors import DataLoss, Impossible, OffsetOutOfRange
from services.common.types import FinishReason, SessionStatus


async def finished_session(
    stored: StoredSession,
    rounds: Sequence[StoredRound],
    tokenizer: Tokenizer,
    offset: int,
) -> AsyncIterator[replies.Event]:
    """The events of a session that has ended, from an output offset on.

    Raises DataLoss for an ephemeral session, of which no text was kept, OffsetOutOfRange, and
    Impossible, behind what there is of the text, for one that was given up.
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
    if isinstance(stored.matched_stop, GivenUp):
        raise Impossible(f"{SuspendReason.IMPOSSIBLE.value}: {stored.matched_stop.reason}")
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


def checked_spec(stored: StoredSession, vocab_size: int) -> SessionSpec:
    """What a stored session was asked to be. Raises DataLoss for what nobody can go on with."""
    spec = load_spec(stored.resolved, stored.prompt)
    if not stored.prompt or max(chain(stored.prompt, stored.committed)) >= vocab_size:
        raise DataLoss("the stored session has tokens that are not in the vocabulary")
    if len(stored.committed) > spec.sampling.max_tokens:
        raise DataLoss("the stored session has more tokens than it was to have")
    return spec


def as_new(stored: StoredSession, owner: str) -> NewSession:
    """The record that the session began with, under its owner of now."""
    return NewSession(
        request=stored.request,
        digest=stored.digest,
        prompt=stored.prompt,
        seed=stored.seed,
        owner=owner,
        resolved=stored.resolved,
        target_fingerprint=stored.target_fingerprint,
        ephemeral=stored.ephemeral,
    )


def beyond(stored: StoredSession, spec: SessionSpec) -> Beyond:
    """What it means that a reader of a stored session is ahead of what was stored."""
    if not stored.relaxed:
        return Beyond.NOT_YET
    return Beyond.AGAIN if spec.mode.exact_match else Beyond.LOST


def _ending(stored: StoredSession) -> Ending:
    assert stored.finish_reason is not None
    match stored.matched_stop:
        case int(token):
            return Ending(stored.finish_reason, matched_token=token)
        case str(text):
            return Ending(stored.finish_reason, matched_text=text)
    return Ending(stored.finish_reason)


def _totals(rounds: Sequence[StoredRound]) -> SpecTotals:
    """Sums over the rounds that are still kept."""
    totals = SpecTotals()
    for stored in rounds:
        kept = load_round(stored.record)
        totals.count(stored.tokens, kept.draft_tokens, kept.accepted_tokens)
    return totals
