"""What the round machine hears (events) and what it asks for (actions).

`at` is the driver's monotonic clock in seconds: the machine has no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.steering.rounds import Commit, Ending, RoundRecord, SuspendReason
from services.contract.types import (
    CommitDraft,
    Credit,
    Draft,
    DraftStates,
    OpenDraft,
    OpenVerify,
    Role,
    States,
    Verdict,
    Verify,
)

# --- Events ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The session exists in the store under this owner; work may start."""

    at: float


@dataclass(frozen=True, slots=True)
class WorkerAttached:
    """Placement chose a worker for a role.

    `ready_s`: the seconds to open the session, by the worker's queue and pace. `beside`: for a
    drafter, the verifier that shares its process and may take its trees.
    """

    at: float
    role: Role
    worker: str
    ready_s: float = 0.0
    beside: str = ""


@dataclass(frozen=True, slots=True)
class WorkerOpened:
    """The worker has the session, opened in this epoch."""

    at: float
    role: Role
    worker: str
    epoch: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker is gone or gave the session up.

    `fatal`: no other worker would succeed (the session itself is refused); `busy`: the worker
    is only full. `epoch` is that of the failed open, so that a late notice hits no newer one;
    None = the whole worker is lost. `for_good`: the session can never go on; `costly`: because
    its response format takes too much.
    """

    at: float
    role: Role
    worker: str
    reason: str = ""
    fatal: bool = False
    busy: bool = False
    epoch: int | None = None
    for_good: bool = False
    costly: bool = False


@dataclass(frozen=True, slots=True)
class DraftArrived:
    """New tail tokens from a drafter."""

    at: float
    worker: str
    draft: Draft


@dataclass(frozen=True, slots=True)
class VerdictArrived:
    """The outcome of a block."""

    at: float
    worker: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StatesArrived:
    """States of the target at tokens that a verifier read before any verdict."""

    at: float
    worker: str
    states: States


@dataclass(frozen=True, slots=True)
class Persisted:
    """The store has acknowledged everything up to this round."""

    at: float
    round: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by."""

    at: float


@dataclass(frozen=True, slots=True)
class StoodStill:
    """This process stalled for so many seconds, which count against no worker."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Detached:
    """Nobody reads the stream any more."""

    at: float


@dataclass(frozen=True, slots=True)
class Reattached:
    """Somebody reads the stream again."""

    at: float


@dataclass(frozen=True, slots=True)
class AbortRequested:
    """End the session at once."""

    at: float


@dataclass(frozen=True, slots=True)
class Capped:
    """The load allows at most `window` draft tokens ahead of the committed text from now on."""

    at: float
    window: int


Event = (
    Begin
    | Capped
    | WorkerAttached
    | WorkerOpened
    | WorkerLost
    | DraftArrived
    | VerdictArrived
    | StatesArrived
    | Persisted
    | StoodStill
    | Tick
    | Detached
    | Reattached
    | AbortRequested
)

# --- Actions ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NeedWorker:
    """Ask placement for a worker; answered by WorkerAttached, or by nothing."""

    role: Role


@dataclass(frozen=True, slots=True)
class OpenOnWorker:
    """Open the session on an attached worker."""

    worker: str
    message: OpenDraft | OpenVerify


@dataclass(frozen=True, slots=True)
class SendVerify:
    """Send a block to the verifier. `draft_ms` is what drafting it took."""

    worker: str
    message: Verify
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SendToDrafter:
    """Send the drafter what was committed, states of the target, or its new window."""

    worker: str
    message: CommitDraft | Credit | DraftStates


@dataclass(frozen=True, slots=True)
class Persist:
    """Store a commit; answered by Persisted."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand a stored commit to the client."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Discarded:
    """A chained block came back unverified. Statistics only."""

    record: RoundRecord


@dataclass(frozen=True, slots=True)
class Release:
    """Close the session on a worker and forget the worker."""

    role: Role
    worker: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The session is over; everything was emitted."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Suspend:
    """The session stops here and can be resumed."""

    reason: SuspendReason
    detail: str = ""


Action = (
    NeedWorker
    | OpenOnWorker
    | SendVerify
    | SendToDrafter
    | Persist
    | Emit
    | Discarded
    | Release
    | Finish
    | Suspend
)
