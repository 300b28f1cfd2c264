"""Commands and events of the verifier link."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from paceline.by_name import read, write
from paceline.v1 import verifier_pb2 as pb

from services.contract.errors import ProtocolError
from services.contract.types import (
    Allowance,
    CloseVerify,
    DraftTree,
    Draining,
    LogprobRow,
    OpenVerify,
    Progress,
    PromptScores,
    SessionFailed,
    States,
    TakenDraft,
    Verdict,
    VerifierCommand,
    VerifierEvent,
    Verify,
    VerifyMode,
    VerifyOpened,
)
from services.contract.wire import records
from services.contract.wire.floats import decode_floats, encode_floats


def encode_verifier_command(command: VerifierCommand) -> pb.VerifierCommand:
    """One command of the batch."""
    match command:
        case OpenVerify():
            return pb.VerifierCommand(open=_encode_open(command))
        case Verify():
            return pb.VerifierCommand(verify=_encode_verify(command))
        case CloseVerify(session):
            return pb.VerifierCommand(close=pb.CloseVerify(session_id=session))
        case _:
            assert_never(command)


def decode_verifier_command(message: pb.VerifierCommand) -> VerifierCommand:
    """The command that `message` holds."""
    return records.decode_oneof(message, "command", _COMMANDS, "a verifier command")


def encode_verifier_event(event: VerifierEvent) -> pb.VerifierEvent:
    """One event of the batch."""
    match event:
        case VerifyOpened():
            return pb.VerifierEvent(opened=_encode_opened(event))
        case Verdict():
            return pb.VerifierEvent(verdict=_encode_verdict(event))
        case Progress():
            return pb.VerifierEvent(progress=records.encode_progress(event))
        case Draining():
            return pb.VerifierEvent(draining=records.encode_draining(event))
        case SessionFailed():
            return pb.VerifierEvent(failed=records.encode_failed(event))
        case States():
            return pb.VerifierEvent(states=records.encode_states(pb.States, event))
        case PromptScores():
            return pb.VerifierEvent(scores=_encode_scores(event))
        case _:
            assert_never(event)


def decode_verifier_event(message: pb.VerifierEvent) -> VerifierEvent:
    """The event that `message` holds."""
    return records.decode_oneof(message, "event", _EVENTS, "a verifier event")


def _encode_open(command: OpenVerify) -> pb.OpenVerify:
    return write(
        pb.OpenVerify,
        command,
        session_id=command.session,
        mode=command.mode.value,
        sampling=records.encode_sampling(command.sampling),
    )


def _decode_open(message: pb.OpenVerify) -> OpenVerify:
    records.require_message(message, "sampling")
    return read(
        OpenVerify,
        message,
        session=_session(message.session_id),
        mode=records.decode_enum(VerifyMode, message.mode, "open.mode"),
        sampling=records.decode_sampling(message.sampling),
    )


def _encode_verify(command: Verify) -> pb.Verify:
    return pb.Verify(
        session_id=command.session,
        epoch=command.epoch,
        round=command.round,
        extends_round=command.extends_round,
        base_len=command.base_len,
        tree=records.encode_tree(command.tree),
        want_bonus=command.want_bonus,
        traceparent=command.traceparent,
        allowance=_encode_allowance(command.allowance),
    )


def _decode_verify(message: pb.Verify) -> Verify:
    """Without a tree it is the empty block, which asks for one token."""
    return Verify(
        session=_session(message.session_id),
        epoch=message.epoch,
        round=message.round,
        base_len=message.base_len,
        tree=records.decode_tree(message.tree) if message.HasField("tree") else DraftTree(),
        extends_round=message.extends_round,
        want_bonus=message.want_bonus,
        traceparent=message.traceparent,
        allowance=_decode_allowance(message) if message.HasField("allowance") else None,
    )


def _encode_allowance(allowance: Allowance | None) -> pb.Allowance | None:
    return None if allowance is None else pb.Allowance(**allowance._asdict())


def _decode_allowance(message: pb.Verify) -> Allowance:
    allowance = message.allowance
    return Allowance(tuple(allowance.prices), tuple(allowance.factors))


def _decode_close(message: pb.CloseVerify) -> CloseVerify:
    return CloseVerify(_session(message.session_id))


def _encode_opened(event: VerifyOpened) -> pb.VerifyOpened:
    return write(pb.VerifyOpened, event, session_id=event.session)


def _decode_opened(message: pb.VerifyOpened) -> VerifyOpened:
    return read(
        VerifyOpened,
        message,
        session=_session(message.session_id),
        prefill_ms=records.require_ms(message.prefill_ms, "opened.prefill_ms"),
    )


def _encode_verdict(event: Verdict) -> pb.Verdict:
    return write(
        pb.Verdict,
        event,
        session_id=event.session,
        logprobs=[_encode_logprobs(row) for row in event.logprobs],
        mode=event.mode.value,
        taken=_encode_taken(event.taken),
    )


def _decode_verdict(message: pb.Verdict) -> Verdict:
    _check_verdict(message)
    return Verdict(
        session=_session(message.session_id),
        epoch=message.epoch,
        round=message.round,
        base_len=message.base_len,
        token_ids=tuple(message.token_ids),
        accepted=message.accepted,
        all_accepted=message.all_accepted,
        discarded=message.discarded,
        accepted_nodes=tuple(message.accepted_nodes),
        logprobs=tuple(map(_decode_logprobs, message.logprobs)),
        queue_ms=records.require_ms(message.queue_ms, "verdict.queue_ms"),
        verify_ms=records.require_ms(message.verify_ms, "verdict.verify_ms"),
        batch_size=message.batch_size,
        batch_rows=message.batch_rows,
        mode=records.decode_enum(VerifyMode, message.mode, "verdict.mode"),
        bad_q_rows=message.bad_q_rows,
        draft_tokens=message.draft_tokens,
        top_rows=message.top_rows,
        taken=_decode_taken(message.taken) if message.HasField("taken") else None,
        states=message.states,
        near_ties=message.near_ties,
    )


def _encode_scores(event: PromptScores) -> pb.PromptScores:
    rows = [_encode_logprobs(row) for row in event.rows]
    return write(pb.PromptScores, event, session_id=event.session, rows=rows)


def _decode_scores(message: pb.PromptScores) -> PromptScores:
    rows = tuple(_decode_logprobs(row) for row in message.rows)
    return PromptScores(_session(message.session_id), message.epoch, message.position, rows)


def _encode_taken(taken: TakenDraft | None) -> pb.TakenDraft | None:
    if taken is None:
        return None
    return write(pb.TakenDraft, taken, tree=records.encode_tree(taken.tree))


def _decode_taken(message: pb.TakenDraft) -> TakenDraft:
    return TakenDraft(
        tree=records.decode_tree(message.tree) if message.HasField("tree") else DraftTree(),
        reach=tuple(message.reach),
        sources=message.sources,
        draft_ms=records.require_ms(message.draft_ms, "verdict.taken.draft_ms"),
    )


def _check_verdict(message: pb.Verdict) -> None:
    tokens, accepted = len(message.token_ids), message.accepted
    if not accepted <= tokens <= accepted + 1:
        raise ProtocolError(f"verdict: {accepted} accepted among {tokens} tokens")
    if len(message.logprobs) not in (0, tokens):
        raise ProtocolError(f"verdict: {len(message.logprobs)} logprobs for {tokens} tokens")
    if len(message.accepted_nodes) not in (0, accepted):
        raise ProtocolError(
            f"verdict: {len(message.accepted_nodes)} nodes for {accepted} accepted tokens"
        )
    if message.near_ties > tokens:
        raise ProtocolError(f"verdict: {message.near_ties} near-ties among {tokens} tokens")


def _encode_logprobs(row: LogprobRow) -> pb.LogprobRow:
    return write(pb.LogprobRow, row, top_logprobs=encode_floats(row.top_logprobs))


def _decode_logprobs(message: pb.LogprobRow) -> LogprobRow:
    ids = tuple(message.top_token_ids)
    values = decode_floats(message.top_logprobs, len(ids), "logprobs.top_logprobs")
    return LogprobRow(message.logprob, ids, values)


def _session(session_id: str) -> str:
    return records.require_name(session_id, "session_id")


_COMMANDS: dict[str, Callable[[Any], VerifierCommand]] = {
    "open": _decode_open,
    "verify": _decode_verify,
    "close": _decode_close,
}
_EVENTS: dict[str, Callable[[Any], VerifierEvent]] = {
    "opened": _decode_opened,
    "verdict": _decode_verdict,
    "progress": records.decode_progress,
    "draining": records.decode_draining,
    "failed": records.decode_failed,
    "states": partial(records.decode_states, States),
    "scores": _decode_scores,
}
