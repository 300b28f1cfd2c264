"""What the store keeps of a round beside its tokens: to account for a session, and to draw it.

The text of draft tokens that were not taken can be read from it, as the output can from the
record beside it; an ephemeral session keeps neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Annotated, Any

from pydantic import Field, create_model

from orchestrator.session.answer import SessionRound
from orchestrator.session.ports import StoredRound, StoredSession
from orchestrator.session.spec_record import load_spec
from orchestrator.steering.rounds import Commit, RoundRecord, SourceCount
from orchestrator.text import Tokenizer
from services.contract.types import Origin, VerifyMode

MOST_DRAFTED = 1 << 16
"""Tokens of one block, in a record that can be believed."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_Count = Annotated[int, Field(ge=0, lt=2**32)]
_Drafted = Annotated[int, Field(ge=0, le=MOST_DRAFTED)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=256)]
_Tokens = Annotated[tuple[_Count, ...], Field(max_length=MOST_DRAFTED)]
_Source = Annotated[int, Field(ge=0, lt=256)]
_Sources = Annotated[tuple[tuple[_Source, _Drafted, _Drafted], ...], Field(max_length=256)]

_PLACES: dict[str, Any] = {
    "epoch": (_Count, 0),
    "draft_tokens": (_Drafted, 0),
    "accepted_tokens": (_Drafted, 0),
    "bonus": (bool, False),
    "started_ms": (_Time, 0.0),
    "draft_ms": (_Time, 0.0),
    "verify_ms": (_Time, 0.0),
    "queue_ms": (_Time, 0.0),
    "round_ms": (_Time, 0.0),
    "batch_size": (_Count, 0),
    "drafter": (_Name, ""),
    "verifier": (_Name, ""),
    "mode": (_Name, ""),
    "rejected": (_Tokens, ()),
    "unjudged": (_Tokens, ()),
    "sources": (_Sources, ()),
}
"""The places of a stored record: what may be there, and what is meant where it ends before.

The same for ever: a new field goes to the end. `started_ms` is Unix time.
"""
_ORDER = tuple(_PLACES)
_Kept = create_model("_Kept", **_PLACES)


def dump_round(commit: Commit, wall: float, *, ephemeral: bool) -> bytes:
    """What is kept of a round, in the order of `_ORDER`, as a JSON array.

    `wall` leads from the driver's clock to Unix time, in seconds.
    """
    record = commit.record
    kept: list[object] = [
        record.epoch,
        record.draft_tokens,
        record.accepted_tokens,
        bool(commit.origins) and commit.origins[-1] is Origin.BONUS,
        round(1e3 * (wall + record.started_at), 2),
        round(record.draft_ms, 2),
        round(record.verify_ms, 2),
        round(record.queue_ms, 2),
        round(record.round_ms, 2),
        record.batch_size,
        record.drafter,
        record.verifier,
        record.mode and record.mode.name,
    ]
    if not ephemeral:
        kept += (record.rejected, record.unjudged)
    elif record.sources:
        kept += ((), ())
    if record.sources:
        kept.append(record.sources)
    return _encode(kept).encode()


def load_round(stored: StoredRound, token_ids: Sequence[int] = ()) -> Commit:
    """Inverse of `dump_round` for the tokens of the round, as far as they are there.

    A record that cannot be believed says nothing.
    """
    kept = _believed(stored.record)
    last = Origin.BONUS if kept.pop("bonus") else Origin.RECOVERED
    started_at = kept.pop("started_ms") / 1e3
    kept["mode"] = VerifyMode.__members__.get(kept["mode"])
    kept["sources"] = tuple(starmap(SourceCount, kept["sources"]))
    record = RoundRecord(
        round=stored.round,
        base_len=stored.base_len,
        emitted_tokens=stored.tokens,
        started_at=started_at,
        ended_at=started_at + kept["round_ms"] / 1e3,
        discarded_tokens=0,
        bad_q_rows=0,
        **kept,
    )
    accepted = min(record.accepted_tokens, len(token_ids))
    origins = (Origin.ACCEPTED,) * accepted + (last,) * (len(token_ids) - accepted)
    return Commit((record,), stored.base_len, tuple(token_ids), origins)


def _believed(record: bytes) -> dict[str, Any]:
    """What a record says at each place."""
    try:
        said = dict(_Kept.model_validate(dict(zip(_ORDER, json.loads(record), strict=False))))
        _require_sums(said)
    except (ValueError, TypeError, RecursionError):
        return dict(_Kept())
    return said


def _require_sums(said: dict[str, Any]) -> None:
    whole = (0, said["draft_tokens"], said["accepted_tokens"])
    if any(accepted > drafted for _, drafted, accepted in (whole, *said["sources"])):
        raise ValueError("more was accepted than drafted")


def session_rounds(
    stored: StoredSession, rounds: Sequence[StoredRound], tokenizer: Tokenizer, offset: int
) -> Iterator[SessionRound | None]:
    """The rounds that begin at or after an output offset, with the text of their tokens.

    None = a step on the way there, so that others may have their turn.
    """
    text = load_spec(stored.resolved, stored.prompt).text_stream(tokenizer)
    yield from text.steps(stored.committed, finished=stored.finish_reason is not None)
    pieces = text.pieces()
    for one in rounds:
        if one.base_len >= offset:
            place = slice(one.base_len, one.base_len + one.tokens)
            yield _told(one, stored.committed[place], pieces[place], tokenizer)


def _told(
    stored: StoredRound, tokens: Sequence[int], pieces: Sequence[str], tokenizer: Tokenizer
) -> SessionRound:
    commit = load_round(stored, tokens)
    return SessionRound(
        stored.term,
        commit.record,
        commit.token_ids,
        pieces,
        commit.origins,
        rejected=tuple(tokenizer.decode((token,)) for token in commit.record.rejected),
        unjudged=tuple(tokenizer.decode((token,)) for token in commit.record.unjudged),
    )
