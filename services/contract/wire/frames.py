"""Frames and their messages. Their columns are checked on the way, and never taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from paceline.worker.v1 import session_pb2 as pb
from paceline.worker.v1 import verifier_pb2

from services.contract.errors import ProtocolError
from services.contract.frames import (
    DraftFrame,
    Grants,
    StepBytes,
    StepFrame,
    StepLogprobs,
    pack,
    unpack,
)
from services.contract.types import LogprobRow
from services.contract.wire.checks import (
    check_draft,
    check_grants,
    check_places,
    check_step,
)

_NUMBERS = ("step", "started_ns", "step_ms", "sessions", "rows")
_FLOAT = 4
_RARE = ("logprobs", "top_rows", "states")
_STEP = tuple(
    own.name for own in fields(StepFrame) if own.name not in (*_NUMBERS, "stood_out", *_RARE)
)
_DRAFT = tuple(own.name for own in fields(DraftFrame))


def put_step(slots: Any, frame: StepFrame) -> None:
    """Add a frame to a message's steps."""
    slot = slots.add(stood_out=frame.stood_out, **_filled(frame, _NUMBERS), **_filled(frame, _STEP))
    for place, rows in frame.logprobs:
        slot.logprobs.add(index=place, rows=list(map(logprob_fields, rows)))
    for place, told in frame.top_rows:
        slot.top_rows.add(index=place, rows=told)
    for place, told in frame.states:
        slot.states.add(index=place, rows=told)


def take_step(message: pb.StepFrame) -> StepFrame:
    """The frame that a message holds."""
    stood_out = tuple(message.stood_out)
    frame = StepFrame(*[*_columns(message, _NUMBERS), stood_out, *_columns(message, _STEP)])
    check_step(frame)
    if not (message.logprobs or message.top_rows or message.states):
        return frame
    for name in _RARE:
        check_places(frame, name, [own.index for own in getattr(message, name)])
    return replace(
        frame,
        logprobs=tuple([_take_logprobs(frame, own) for own in message.logprobs]),
        top_rows=tuple([StepBytes(own.index, own.rows) for own in message.top_rows]),
        states=tuple([StepBytes(own.index, own.rows) for own in message.states]),
    )


def _take_logprobs(frame: StepFrame, message: pb.StepLogprobs) -> StepLogprobs:
    rows, count = len(message.rows), frame.counts[message.index]
    if rows != count:
        raise ProtocolError(f"StepFrame.logprobs: {rows} rows for {count} tokens")
    return StepLogprobs(message.index, tuple(map(take_logprob, message.rows)))


def put_draft(slots: Any, frame: DraftFrame) -> None:
    """Add a frame to a message's drafts."""
    slots.add(**_filled(frame, _DRAFT))


def take_draft(message: pb.DraftFrame) -> DraftFrame:
    """The frame that a message holds."""
    frame = DraftFrame(*_columns(message, _DRAFT))
    check_draft(frame)
    return frame


def put_grants(slots: Any, frame: Grants) -> None:
    """Add limits to a message's grants."""
    slots.add(handles=frame.handles, limits=frame.limits)


def take_grants(message: verifier_pb2.Grants) -> Grants:
    """The limits that a message holds."""
    frame = Grants(message.handles, message.limits)
    check_grants(frame)
    return frame


def logprob_fields(row: LogprobRow) -> dict[str, Any]:
    """What a row's message is made of."""
    return {
        "logprob": row.logprob,
        "top_token_ids": row.top_token_ids,
        "top_logprobs": pack("f", row.top_logprobs),
    }


def take_logprob(message: pb.LogprobRow) -> LogprobRow:
    """The row that a message holds."""
    ids, column = tuple(message.top_token_ids), message.top_logprobs
    if len(column) != _FLOAT * len(ids):
        raise ProtocolError(
            f"LogprobRow.top_logprobs: {len(column)} bytes for {len(ids)} values of {_FLOAT} bytes"
        )
    return LogprobRow(message.logprob, ids, tuple(unpack("f", column)))


def _filled(frame: Any, names: Sequence[str]) -> dict[str, Any]:
    """What is not empty; the rest need not be written."""
    return {name: column for name in names if (column := getattr(frame, name))}


def _columns(message: Any, names: Sequence[str]) -> list[Any]:
    return [getattr(message, name) for name in names]
