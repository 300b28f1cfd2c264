"""What the store keeps of a round beside its tokens: to account for a session, and to draw it.

The text of draft tokens that were not taken can be read from it, as the output can from the
record beside it; an ephemeral session keeps neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import starmap
from typing import Annotated, Any, get_type_hints

from paceline.v1 import inference_pb2 as pb
from pydantic import BaseModel, Field, create_model

from orchestrator.core.events import Commit, RoundRecord, SourceCount
from orchestrator.frontdoor.grpc.replies import NUMBERS, round_stats
from orchestrator.frontdoor.requests import load_spec
from orchestrator.session.ports import StoredRound, StoredSession
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

_BELIEVED: dict[Any, tuple[Any, Any]] = {
    int: (_Count, 0),
    float: (_Time, 0.0),
    str: (_Name, ""),
    VerifyMode | None: (_Name, ""),
    tuple[int, ...]: (_Tokens, ()),
    tuple[SourceCount, ...]: (_Sources, ()),
}
"""What a field of each type may be in a record that can be believed, and where it was not kept."""

_BESIDE = {"round", "base_len", "emitted_tokens"}
"""What the store keeps itself."""
_PASSING = {"started_at", "ended_at", "discarded_tokens", "bad_q_rows"}
"""What is told when it happens and not kept so."""
_KEPT = tuple(name for name in RoundRecord._fields if name not in _BESIDE | _PASSING)
_ORDER = (*_KEPT[:3], "bonus", "started_ms", *_KEPT[3:])
"""What a stored record has at each place, the same for ever: a new field goes to the end."""


def _checked_model() -> type[BaseModel]:
    hints = get_type_hints(RoundRecord)
    shapes = {name: _BELIEVED[hints[name]] for name in _KEPT}
    drafted = dict.fromkeys(("draft_tokens", "accepted_tokens"), (_Drafted, 0))
    more = {"bonus": (bool, False), "started_ms": (_Time, 0.0)}
    return create_model("Kept", **shapes | drafted | more)  # type: ignore[no-any-return, call-overload]


_Kept = _checked_model()


def dump_round(commit: Commit, wall: float, *, ephemeral: bool) -> bytes:
    """What is kept of a round, in the order of `_ORDER`, as a JSON array.

    `wall` leads from the driver's clock to Unix time, in seconds.
    """
    record = commit.record
    if ephemeral:
        record = record._replace(rejected=(), unjudged=())
    bonus = bool(commit.origins) and commit.origins[-1] is Origin.BONUS
    kept = [_plain(getattr(record, name)) for name in _KEPT]
    kept[3:3] = (bonus, round(1e3 * (wall + record.started_at), 2))
    if not record.sources:
        # Nothing stands at the end for what is never kept.
        del kept[-3 if ephemeral else -1 :]
    return _encode(kept).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 2)
    return value.name if isinstance(value, Enum) else value


def load_round(stored: StoredRound, token_ids: Sequence[int] = ()) -> Commit:
    """Inverse of `dump_round` for the tokens of the round, as far as they are there.

    A record that cannot be believed says nothing.
    """
    kept = _believed(stored.record)
    last = Origin.BONUS if kept.pop("bonus") else Origin.RECOVERED
    kept["mode"] = VerifyMode.__members__.get(kept["mode"])
    kept["sources"] = tuple(starmap(SourceCount, kept["sources"]))
    record = RoundRecord(
        stored.round,
        base_len=stored.base_len,
        emitted_tokens=stored.tokens,
        started_at=kept.pop("started_ms") / 1e3,
        **kept,
    )
    accepted = min(record.accepted_tokens, len(token_ids))
    origins = (Origin.ACCEPTED,) * accepted + (last,) * (len(token_ids) - accepted)
    return Commit(record, stored.base_len, tuple(token_ids), origins)


def _believed(record: bytes) -> dict[str, Any]:
    """What a record says by the names of its places; what is missing at the end was not kept."""
    try:
        kept = _Kept.model_validate(dict(zip(_ORDER, json.loads(record), strict=False)))
        said = dict(kept)
        _require_sums(said)
    except (ValueError, TypeError, RecursionError):
        return dict(_Kept())
    return said


def _require_sums(said: dict[str, Any]) -> None:
    counts = [
        (said["draft_tokens"], said["accepted_tokens"]),
        *(one[1:] for one in said["sources"]),
    ]
    if any(accepted > drafted for drafted, accepted in counts):
        raise ValueError("more was accepted than drafted")


def session_rounds(
    stored: StoredSession, rounds: Sequence[StoredRound], tokenizer: Tokenizer, offset: int
) -> Iterator[pb.SessionRound | None]:
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
) -> pb.SessionRound:
    commit = load_round(stored, tokens)
    record = commit.record
    return pb.SessionRound(
        term=stored.term,
        offset=stored.base_len,
        started_unix_ms=round(1e3 * record.started_at, 2),
        stats=round_stats(record),
        token_ids=tokens,
        pieces=pieces,
        origins=[NUMBERS[origin] for origin in commit.origins],
        rejected=[tokenizer.decode((token,)) for token in record.rejected],
        unjudged=[tokenizer.decode((token,)) for token in record.unjudged],
    )
