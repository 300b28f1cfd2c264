"""What the store keeps of a round beside its tokens: to account for a session, and to draw it.

The text of draft tokens that were not taken can be read from it, as the output can from the
record beside it; an ephemeral session keeps neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, starmap
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

MOST_TOGETHER = 1 << 10
"""Rounds in one commit."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_Count = Annotated[int, Field(ge=0, lt=2**32)]
_Drafted = Annotated[int, Field(ge=0, le=MOST_DRAFTED)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(max_length=256)]
_Tokens = Annotated[tuple[_Count, ...], Field(max_length=MOST_DRAFTED)]
_Source = Annotated[int, Field(ge=0, lt=256)]
_Sources = Annotated[tuple[tuple[_Source, _Drafted, _Drafted], ...], Field(max_length=256)]
_Rounds = Annotated[tuple[tuple[Any, ...], ...], Field(max_length=MOST_TOGETHER)]

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
    "rounds": (_Rounds, ()),
}
"""The places of a stored record: what may be there, and what is meant where it ends before.

The same for ever: a new field goes to the end. `started_ms` is Unix time.
"""
_ORDER = tuple(_PLACES)
_NOTHING: tuple[object, ...] = tuple([nothing for _, nothing in _PLACES.values()])
_Kept = create_model("_Kept", **_PLACES)


def dump_round(commit: Commit, wall: float, *, ephemeral: bool) -> bytes:
    """What is kept of the rounds of a commit, in the order of `_ORDER`, as a JSON array.

    Several rounds are told as one first, which is all that 0.2 reads of them: the sums, from the
    beginning of the first to the end of the last, by the workers and the rule of the last.
    Behind it, in `rounds`, stands each by itself, its tokens before its own places.
    `wall` leads from the driver's clock to Unix time, in seconds.
    """
    records, origins = commit.records, commit.origins
    if len(records) == 1:
        return _encode(_places(records[0], origins, wall, ephemeral)).encode()
    kept = _places(_as_one(records), origins, wall, ephemeral)
    kept += _NOTHING[len(kept) : _ORDER.index("rounds")]
    parts: list[object] = []
    for record in records:
        own, origins = origins[: record.emitted_tokens], origins[record.emitted_tokens :]
        parts.append([record.emitted_tokens, *_places(record, own, wall, ephemeral)])
    kept.append(parts)
    return _encode(kept).encode()


def _places(
    record: RoundRecord, origins: Sequence[Origin], wall: float, ephemeral: bool
) -> list[object]:
    kept: list[object] = [
        record.epoch,
        record.draft_tokens,
        record.accepted_tokens,
        bool(origins) and origins[-1] is Origin.BONUS,
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
    return kept


def _as_one(records: Sequence[RoundRecord]) -> RoundRecord:
    """Several rounds as if they had been one."""
    first, last = records[0], records[-1]
    sources: dict[int, tuple[int, int]] = {}
    for source, drafted, accepted in chain.from_iterable([one.sources for one in records]):
        before = sources.get(source, (0, 0))
        sources[source] = before[0] + drafted, before[1] + accepted
    return RoundRecord(
        last.round,
        last.epoch,
        first.base_len,
        sum([one.draft_tokens for one in records]),
        sum([one.accepted_tokens for one in records]),
        sum([one.emitted_tokens for one in records]),
        sum([one.draft_ms for one in records]),
        sum([one.verify_ms for one in records]),
        sum([one.queue_ms for one in records]),
        1e3 * (last.ended_at - first.started_at),
        last.batch_size,
        next((one.drafter for one in reversed(records) if one.drafter), ""),
        last.verifier,
        last.mode,
        first.started_at,
        last.ended_at,
        rejected=tuple(chain.from_iterable([one.rejected for one in records])),
        sources=tuple([SourceCount(own, *sources[own]) for own in sorted(sources)]),
    )


def load_round(stored: StoredRound, token_ids: Sequence[int] = ()) -> Commit:
    """Inverse of `dump_round` for the tokens of the commit, as far as they are there.

    A record that cannot be believed says nothing.
    """
    records: list[RoundRecord] = []
    origins: tuple[Origin, ...] = ()
    parts = _believed(stored)
    base, number = stored.base_len, stored.round + 1 - len(parts)
    for tokens, kept in parts:
        last = Origin.BONUS if kept.pop("bonus") else Origin.RECOVERED
        records.append(_record(kept, number + len(records), base, tokens))
        here = len(token_ids[base - stored.base_len :][:tokens])
        accepted = min(records[-1].accepted_tokens, here)
        origins += (Origin.ACCEPTED,) * accepted + (last,) * (here - accepted)
        base += tokens
    return Commit(tuple(records), stored.base_len, tuple(token_ids), origins)


def _record(kept: dict[str, Any], number: int, base_len: int, tokens: int) -> RoundRecord:
    started_at = kept.pop("started_ms") / 1e3
    kept["mode"] = VerifyMode.__members__.get(kept["mode"])
    kept["sources"] = tuple(starmap(SourceCount, kept["sources"]))
    return RoundRecord(
        round=number,
        base_len=base_len,
        emitted_tokens=tokens,
        started_at=started_at,
        ended_at=started_at + kept["round_ms"] / 1e3,
        **kept,
    )


_Part = tuple[int, dict[str, Any]]


def _believed(stored: StoredRound) -> list[_Part]:
    """What a record says at each place of each of its rounds, and the tokens of the round."""
    try:
        whole = _said(json.loads(stored.record))
        rounds = whole.pop("rounds")
        if not rounds:
            return [(stored.tokens, whole)]
        parts = [(_tokens(one[0]), _said(one[1:])) for one in rounds]
        if sum(tokens for tokens, _ in parts) != stored.tokens or len(parts) > stored.round:
            raise ValueError("its rounds are not the whole of it")
    except (ValueError, TypeError, RecursionError, IndexError):
        parts = [(stored.tokens, dict(_Kept()))]
    for _, said in parts:
        said.pop("rounds", None)
    return parts


def _tokens(said: object) -> int:
    if not isinstance(said, int) or not 0 <= said <= MOST_DRAFTED:
        raise ValueError("no number of tokens")
    return said


def _said(record: Sequence[object]) -> dict[str, Any]:
    said = dict(_Kept.model_validate(dict(zip(_ORDER, record, strict=False))))
    _require_sums(said)
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
        if one.base_len + one.tokens >= offset:
            commit = load_round(one, stored.committed[one.base_len :][: one.tokens])
            for record in commit.records:
                if record.base_len >= offset:
                    yield _told(one.term, commit, record, pieces, tokenizer)


def _told(
    term: int, commit: Commit, record: RoundRecord, pieces: Sequence[str], tokenizer: Tokenizer
) -> SessionRound:
    first = record.base_len - commit.base_len
    own = slice(first, first + record.emitted_tokens)
    return SessionRound(
        term,
        record,
        commit.token_ids[own],
        pieces[record.base_len :][: record.emitted_tokens],
        commit.origins[own],
        rejected=tuple(tokenizer.decode((token,)) for token in record.rejected),
        unjudged=tuple(tokenizer.decode((token,)) for token in record.unjudged),
    )
