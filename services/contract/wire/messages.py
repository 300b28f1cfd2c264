"""What is said of single sessions, and of a worker: one table each for what goes one way.

A message is filled in its place, from the fields of a record: made by itself and put into
another, it would be copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from paceline.by_name import fields_of, read
from paceline.worker.v1 import drafter_pb2, session_pb2, verifier_pb2

from services.contract.errors import ProtocolError
from services.contract.frames import WaitReason
from services.contract.states import MESSAGE_BYTES
from services.contract.types import Draining, FailureReason, Progress, VerifyMode
from services.contract.wire import records
from services.contract.wire.checks import check_waiting
from services.contract.wire.frames import logprob_fields, take_logprob
from services.contract.worker_messages import (
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    SetWindow,
    StartDraft,
    StartVerify,
    TextStates,
    Waiting,
)

S = TypeVar("S", StartVerify, StartDraft)

_REASONS = bytes(
    records.known_enum(WaitReason, reason, WaitReason.TURN).value for reason in range(256)
)
"""Why a session waits, by the byte that says so; what only a newer worker knows excuses it, too."""


class Kind(NamedTuple):
    """One member of a oneof: its name, the fields of a record, and the record of a message."""

    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _write_start(message: Any, record: Any) -> dict[str, Any]:
    mode, sampling = record.mode.value, records.encode_sampling(record.sampling)
    return fields_of(message, record, mode=mode, sampling=sampling)


def _read_start(kind: type[S], message: Any) -> S:
    records.require_message(message, "sampling")
    return read(
        kind,
        message,
        opening=_opening(message),
        session_id=records.require_name(message.session_id, "session_id"),
        mode=records.decode_enum(VerifyMode, message.mode, "start.mode"),
        sampling=records.decode_sampling(message.sampling),
    )


def _as_it_is(record: Any) -> dict[str, Any]:
    return dict(record._asdict())


def _read_end(message: session_pb2.EndSession) -> EndSession:
    return EndSession(message.handle)


def _read_window(message: Any) -> SetWindow:
    return SetWindow(message.handle, message.window)


def _read_drafted_for(message: verifier_pb2.SetDraftedFor) -> SetDraftedFor:
    return SetDraftedFor(message.handle, message.drafted_for)


def _read_states(message: session_pb2.TextStates) -> TextStates:
    if len(message.states) > MESSAGE_BYTES:
        raise ProtocolError(f"TextStates.states: {len(message.states)} bytes are too many")
    return TextStates(message.handle, _opening(message), message.position, message.states)


def _read_started(message: session_pb2.SessionStarted) -> SessionStarted:
    ms = records.require_ms(message.prefill_ms, "SessionStarted.prefill_ms")
    return SessionStarted(message.handle, _opening(message), message.cached_tokens, ms)


def _write_gone(record: SessionGone) -> dict[str, Any]:
    return _as_it_is(record) | {"reason": record.reason.value}


def _read_gone(message: session_pb2.SessionGone) -> SessionGone:
    reason = records.known_enum(FailureReason, message.reason, FailureReason.INTERNAL)
    said = message.message[: records.LONGEST_REASON]
    return SessionGone(message.handle, _opening(message), reason, said)


def _write_scores(record: PromptScores) -> dict[str, Any]:
    return _as_it_is(record) | {"rows": list(map(logprob_fields, record.rows))}


def _read_scores(message: verifier_pb2.PromptScores) -> PromptScores:
    rows = tuple(map(take_logprob, message.rows))
    return PromptScores(message.handle, _opening(message), message.position, rows)


def _read_waiting(message: verifier_pb2.Waiting) -> Waiting:
    waiting = Waiting(message.handles, message.reasons.translate(_REASONS))
    check_waiting(waiting)
    return waiting


def _opening(message: Any) -> int:
    opening: int = message.opening
    if not opening:
        raise ProtocolError(f"{type(message).__name__}.opening: they begin with 1")
    return opening


_END: dict[type[Any], Kind] = {
    EndSession: Kind("end", _as_it_is, _read_end),
    SetWindow: Kind("window", _as_it_is, _read_window),
}
_STATES: dict[type[Any], Kind] = {TextStates: Kind("states", _as_it_is, _read_states)}
_WORKER: dict[type[Any], Kind] = {
    SessionStarted: Kind("started", _as_it_is, _read_started),
    SessionGone: Kind("gone", _write_gone, _read_gone),
    Progress: Kind("progress", records.encode_progress, records.decode_progress),
    Draining: Kind("draining", records.encode_draining, records.decode_draining),
}

VERIFIER_COMMANDS: dict[type[Any], Kind] = {
    StartVerify: Kind(
        "start", partial(_write_start, verifier_pb2.StartVerify), partial(_read_start, StartVerify)
    ),
    **_END,
    SetDraftedFor: Kind("drafted_for", _as_it_is, _read_drafted_for),
}
DRAFTER_COMMANDS: dict[type[Any], Kind] = {
    StartDraft: Kind(
        "start", partial(_write_start, drafter_pb2.StartDraft), partial(_read_start, StartDraft)
    ),
    **_END,
    **_STATES,
}
DRAFTER_EVENTS = _WORKER
VERIFIER_EVENTS: dict[type[Any], Kind] = {
    **_WORKER,
    **_STATES,
    PromptScores: Kind("scores", _write_scores, _read_scores),
    Waiting: Kind("waiting", _as_it_is, _read_waiting),
}
