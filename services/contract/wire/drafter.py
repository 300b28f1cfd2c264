"""Commands and events of the drafter link."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

from paceline.by_name import read, write
from paceline.v1 import drafter_pb2 as pb

from services.contract.types import (
    CloseDraft,
    CommitDraft,
    Credit,
    Draft,
    DrafterCommand,
    DrafterEvent,
    DraftOpened,
    DraftStates,
    Draining,
    OpenDraft,
    Progress,
    SessionFailed,
    VerifyMode,
)
from services.contract.wire import records


def encode_drafter_command(command: DrafterCommand) -> pb.DrafterCommand:
    """One command of the batch."""
    match command:
        case OpenDraft():
            return pb.DrafterCommand(open=_encode_open(command))
        case CommitDraft():
            return pb.DrafterCommand(commit=_encode_commit(command))
        case CloseDraft(session):
            return pb.DrafterCommand(close=pb.CloseDraft(session_id=session))
        case Credit(session, window):
            return pb.DrafterCommand(credit=pb.Credit(session_id=session, window=window))
        case DraftStates():
            return pb.DrafterCommand(states=records.encode_states(pb.DraftStates, command))
        case _:
            assert_never(command)


def decode_drafter_command(message: pb.DrafterCommand) -> DrafterCommand:
    """The command that `message` holds."""
    return records.decode_oneof(message, "command", _COMMANDS, "a drafter command")


def encode_drafter_event(event: DrafterEvent) -> pb.DrafterEvent:
    """One event of the batch."""
    match event:
        case DraftOpened(session, epoch):
            return pb.DrafterEvent(opened=pb.DraftOpened(session_id=session, epoch=epoch))
        case Draft():
            return pb.DrafterEvent(draft=_encode_draft(event))
        case Progress():
            return pb.DrafterEvent(progress=records.encode_progress(event))
        case Draining():
            return pb.DrafterEvent(draining=records.encode_draining(event))
        case SessionFailed():
            return pb.DrafterEvent(failed=records.encode_failed(event))
        case _:
            assert_never(event)


def decode_drafter_event(message: pb.DrafterEvent) -> DrafterEvent:
    """The event that `message` holds."""
    return records.decode_oneof(message, "event", _EVENTS, "a drafter event")


def _encode_open(command: OpenDraft) -> pb.OpenDraft:
    return write(
        pb.OpenDraft,
        command,
        session_id=command.session,
        mode=command.mode.value,
        sampling=records.encode_sampling(command.sampling),
    )


def _decode_open(message: pb.OpenDraft) -> OpenDraft:
    records.require_message(message, "sampling")
    return read(
        OpenDraft,
        message,
        session=_session(message.session_id),
        mode=records.decode_enum(VerifyMode, message.mode, "open.mode"),
        sampling=records.decode_sampling(message.sampling),
    )


def _encode_commit(command: CommitDraft) -> pb.CommitDraft:
    return pb.CommitDraft(
        session_id=command.session,
        epoch=command.epoch,
        base_len=command.base_len,
        token_ids=command.token_ids,
        top_rows=command.top_rows,
        states=command.states,
    )


def _decode_commit(message: pb.CommitDraft) -> CommitDraft:
    return CommitDraft(
        session=_session(message.session_id),
        epoch=message.epoch,
        base_len=message.base_len,
        token_ids=tuple(message.token_ids),
        top_rows=message.top_rows,
        states=message.states,
    )


def _decode_close(message: pb.CloseDraft) -> CloseDraft:
    return CloseDraft(_session(message.session_id))


def _decode_credit(message: pb.Credit) -> Credit:
    return Credit(_session(message.session_id), message.window)


def _decode_opened(message: pb.DraftOpened) -> DraftOpened:
    return DraftOpened(_session(message.session_id), message.epoch)


def _encode_draft(event: Draft) -> pb.Draft:
    tree = records.encode_tree(event.tree)
    return write(pb.Draft, event, session_id=event.session, tree=tree)


def _decode_draft(message: pb.Draft) -> Draft:
    records.require_message(message, "tree")
    return Draft(
        session=_session(message.session_id),
        epoch=message.epoch,
        base_committed_len=message.base_committed_len,
        first_position=message.first_position,
        prefix_hash=message.prefix_hash,
        tree=records.decode_tree(message.tree),
        final=message.final,
        draft_ms=records.require_ms(message.draft_ms, "draft.draft_ms"),
        reach=tuple(message.reach),
        sources=message.sources,
    )


def _session(session_id: str) -> str:
    return records.require_name(session_id, "session_id")


_COMMANDS: dict[str, Callable[[Any], DrafterCommand]] = {
    "open": _decode_open,
    "commit": _decode_commit,
    "close": _decode_close,
    "credit": _decode_credit,
    "states": partial(records.decode_states, DraftStates),
}
_EVENTS: dict[str, Callable[[Any], DrafterEvent]] = {
    "opened": _decode_opened,
    "draft": _decode_draft,
    "progress": records.decode_progress,
    "draining": records.decode_draining,
    "failed": records.decode_failed,
}
