"""What the store keeps of a round beside its tokens: to account for a session, and to draw it.

The text of draft tokens that were not taken can be read from it, as the output can from the
record beside it; an ephemeral session keeps neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from paceline.v1 import inference_pb2 as pb
from pydantic import BaseModel, ConfigDict, Field, model_validator

from orchestrator.core.events import Commit
from orchestrator.frontdoor.grpc.replies import origin, rule
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


class KeptRound(BaseModel):
    """One round; times in milliseconds, `started_ms` of Unix time.

    `sources`: (`DraftSource`, drafted, accepted) of those that the block had tokens of.
    """

    model_config = ConfigDict(frozen=True)

    epoch: _Count = 0
    draft_tokens: _Drafted = 0
    accepted_tokens: _Drafted = 0
    bonus: bool = False
    started_ms: _Time = 0.0
    draft_ms: _Time = 0.0
    verify_ms: _Time = 0.0
    queue_ms: _Time = 0.0
    round_ms: _Time = 0.0
    batch_size: _Count = 0
    drafter: _Name = ""
    verifier: _Name = ""
    mode: _Name = ""
    rejected: _Tokens = ()
    unjudged: _Tokens = ()
    sources: _Sources = ()

    @model_validator(mode="after")
    def _adds_up(self) -> KeptRound:
        counts = [(self.draft_tokens, self.accepted_tokens), *(one[1:] for one in self.sources)]
        if any(accepted > drafted for drafted, accepted in counts):
            raise ValueError("more was accepted than drafted")
        return self


_FIELDS = tuple(KeptRound.model_fields)


def dump_round(commit: Commit, wall: float, *, ephemeral: bool) -> bytes:
    """The record of a round: the fields of `KeptRound` in their order, as a JSON array.

    `wall` leads from the driver's clock to Unix time, in seconds.
    """
    record = commit.record
    kept: list[Any] = [
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
        record.mode.name,
    ]
    if not ephemeral:
        kept += (record.rejected, record.unjudged)
    if record.sources:
        kept += ((), ()) if ephemeral else ()
        kept.append(record.sources)
    return _encode(kept).encode()


def load_round(record: bytes) -> KeptRound:
    """Inverse of `dump_round`; nothing but zeros for a record that cannot be believed."""
    try:
        values = json.loads(record)
        # What is missing at the end was not kept.
        return KeptRound.model_validate(dict(zip(_FIELDS, values, strict=False)))
    except (ValueError, TypeError, RecursionError):
        return KeptRound()


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
    kept = load_round(stored.record)
    last = Origin.BONUS if kept.bonus else Origin.RECOVERED
    accepted = [place < kept.accepted_tokens for place in range(len(tokens))]
    return pb.SessionRound(
        term=stored.term,
        offset=stored.base_len,
        started_unix_ms=kept.started_ms,
        stats=pb.RoundStats(
            index=stored.round,
            emitted_tokens=stored.tokens,
            rejection_sample_method=_rule(kept.mode),
            **kept.model_dump(include=_AS_THEY_ARE),
        ),
        token_ids=tokens,
        pieces=pieces,
        origins=[origin(Origin.ACCEPTED if one else last) for one in accepted],
        rejected=[tokenizer.decode((token,)) for token in kept.rejected],
        unjudged=[tokenizer.decode((token,)) for token in kept.unjudged],
    )


_AS_THEY_ARE = {field.name for field in pb.RoundStats.DESCRIPTOR.fields} & set(
    KeptRound.model_fields
)


def _rule(name: str) -> pb.RejectionSampleMethod:
    try:
        return rule(VerifyMode[name])
    except KeyError:
        return pb.REJECTION_SAMPLE_METHOD_UNSPECIFIED
