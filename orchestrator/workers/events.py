"""What a worker says, as an event of the round machine."""

from __future__ import annotations

from orchestrator.core.events import (
    DraftArrived,
    Event,
    StatesArrived,
    VerdictArrived,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.workers.link import SessionEvent
from services.contract.types import (
    Draft,
    DraftOpened,
    FailureReason,
    PromptScores,
    Role,
    SessionFailed,
    States,
    Verdict,
    VerifyOpened,
)


def to_core(worker: str, role: Role, event: SessionEvent, at: float) -> Event | None:
    """The event for the session's machine; None for scores, which do not concern it."""
    match event:
        case Draft():
            return DraftArrived(at, worker, event)
        case Verdict():
            return VerdictArrived(at, worker, event)
        case DraftOpened(_, epoch):
            return WorkerOpened(at, role, worker, epoch)
        case VerifyOpened(_, epoch, cached):
            return WorkerOpened(at, role, worker, epoch, cached)
        case States():
            return StatesArrived(at, worker, event)
        case SessionFailed(_, reason, message, epoch):
            fatal = reason in (FailureReason.INVALID, FailureReason.UNSUPPORTED)
            busy = reason is FailureReason.CAPACITY
            return WorkerLost(
                *(at, role, worker, message or reason.name),
                fatal=fatal or reason.for_good,
                busy=busy,
                epoch=epoch,
                for_good=reason.for_good,
                costly=reason is FailureReason.FORMAT_COST,
            )
        case PromptScores():
            return None
