"""Sessions read back from the store: an ended one to replay, or one to continue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from orchestrator.session.answer import Chunk, Complete, Event, Started
from orchestrator.session.output import MOST_TOGETHER, Beyond, Prefix, ahead, another_text
from orchestrator.session.ports import NewSession, StoredRound, StoredSession
from orchestrator.session.round_records import load_round
from orchestrator.session.spec import SessionSpec
from orchestrator.session.spec_record import load_spec
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending, GivenUp, SuspendReason
from orchestrator.text import TextStream, Tokenizer
from services.contract.errors import (
    DataLoss,
    DeadlinePassed,
    FormatTooCostly,
    Impossible,
    NoWorker,
    OffsetOutOfRange,
    PacelineError,
    SessionError,
)
from services.contract.types import EMPTY_HASH, FinishReason, SessionStatus, extend_hash


def finished_session(
    stored: StoredSession,
    rounds: Sequence[StoredRound],
    tokenizer: Tokenizer,
    prefix: Prefix,
) -> Iterator[Event | None]:
    """The events of an ended session, after the part that a reader has.

    None = a step of the work, after which others may have their turn. Raises DataLoss for an
    ephemeral session, whose text was not kept, and for a reader of another text;
    OffsetOutOfRange. A session that was given up has no end event: see `given_up`.
    """
    if len(stored.committed) != stored.committed_len or stored.finish_reason is None:
        raise DataLoss("the session has ended and was ephemeral: its text was not kept")
    require_prefix(stored, prefix, comes_again=False)
    if prefix.offset > stored.committed_len:
        raise ahead(prefix, stored.committed_len, lost=False)
    spec = load_spec(stored.resolved, stored.prompt)
    text = spec.text_stream(tokenizer)
    yield from text.steps(stored.committed, finished=True)
    yield Started(spec.session, len(spec.prompt), spec.seed, spec.index)
    for first in range(prefix.offset, stored.committed_len, MOST_TOGETHER):
        told = slice(first, first + MOST_TOGETHER)
        pieces = text.pieces(first)[:MOST_TOGETHER]
        apart = pieces if spec.include_rounds else ()
        said = "".join(pieces)
        yield Chunk(first, stored.committed[told], said, pieces=apart, completion=spec.index)
    if given_up(stored) is not None:
        return
    totals = SpecTotals()
    for one in rounds:
        for record in load_round(one).records:
            totals.add(record)
        yield None
    lengths = stored.prompt_len, stored.committed_len
    ending = Ending(stored.finish_reason, stored.matched_stop)
    yield Complete(ending, text.text, totals, *lengths, completion=spec.index)


def require_possible(spec: SessionSpec, prefix: Prefix) -> None:
    """Raise OffsetOutOfRange for an offset that the session can never reach."""
    if prefix.offset > spec.sampling.max_tokens:
        raise OffsetOutOfRange(
            f"offset: {prefix.offset} lies beyond the {spec.sampling.max_tokens} tokens that the "
            "session may have"
        )


def given_up(stored: StoredSession) -> SessionError | None:
    """The error that readers get instead of an end, if the session can never go on."""
    why = stored.matched_stop
    return end_of(why) if isinstance(why, GivenUp) else None


def end_of(given_up: GivenUp) -> SessionError:
    """The error that tells it."""
    if given_up.costly:
        return FormatTooCostly(f"{SuspendReason.COSTLY.value}: {given_up.reason}")
    return Impossible(f"{SuspendReason.IMPOSSIBLE.value}: {given_up.reason}")


def stopped(reason: SuspendReason, detail: str) -> PacelineError:
    """The error of readers of a session that stopped before its end."""
    message = f"{reason.value}: {detail}" if detail else reason.value
    kind = DeadlinePassed if reason is SuspendReason.DEADLINE else NoWorker
    return kind(f"{message}; the session can be resumed")


def require_prefix(stored: StoredSession, prefix: Prefix, *, comes_again: bool) -> None:
    """Raise DataLoss for a reader whose hash does not fit the stored text.

    `comes_again`: missing tokens are generated again, the same. A text that was not kept is
    not compared.
    """
    kept = len(stored.committed)
    if prefix.hash is None or kept != stored.committed_len:
        return
    if prefix.offset > kept:
        if not comes_again:
            raise ahead(prefix, kept, lost=True)
    elif extend_hash(EMPTY_HASH, stored.committed[: prefix.offset]) != prefix.hash:
        raise another_text(prefix)


def implied_ending(stored: StoredSession, spec: SessionSpec, text: TextStream) -> Ending | None:
    """The ending that the committed text implies, if the owner died before it stored one.

    `text` has taken what was committed.
    """
    if stored.status is SessionStatus.FINISHED or not stored.committed:
        return None
    if text.state.stop:
        return Ending(FinishReason.STOP, text.state.stop)
    last = stored.committed[-1]
    if last in spec.sampling.stop_token_ids:
        return Ending(FinishReason.STOP, last)
    if len(stored.committed) >= spec.sampling.max_tokens:
        return Ending(FinishReason.LENGTH)
    return None


def checked_spec(stored: StoredSession, vocab_size: int) -> SessionSpec:
    """The spec of a stored session. Raises DataLoss for one that cannot be continued."""
    spec = load_spec(stored.resolved, stored.prompt)
    if not stored.prompt or max(chain(stored.prompt, stored.committed)) >= vocab_size:
        raise DataLoss("the stored session has tokens that are not in the vocabulary")
    if len(stored.committed) > spec.sampling.max_tokens:
        raise DataLoss("the stored session has more tokens than it was to have")
    return spec


def as_new(stored: StoredSession, owner: str) -> NewSession:
    """The record that the session began with, under its current owner."""
    return NewSession(
        digest=stored.digest,
        prompt=stored.prompt,
        seed=stored.seed,
        owner=owner,
        resolved=stored.resolved,
        target_fingerprint=stored.target_fingerprint,
        ephemeral=stored.ephemeral,
        index=stored.index,
        n=stored.n,
    )


def beyond(stored: StoredSession, spec: SessionSpec) -> Beyond:
    """What it means that a reader is ahead of a stored session."""
    if not stored.relaxed:
        return Beyond.NOT_YET
    return Beyond.AGAIN if spec.mode.exact_match else Beyond.LOST
