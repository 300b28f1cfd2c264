"""What the machine of a steered session hears (events) and what it asks for (actions).

`at` is the driver's monotonic clock in seconds: the machine has no clock of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.steering.ports import Taken
from orchestrator.steering.rounds import Commit, Ending, SuspendReason
from services.contract.frames import WaitReason
from services.contract.types import Role
from services.contract.worker_messages import StartDraft, StartVerify, TextStates

# --- Events ----------------------------------------------------------------------


class Begin(NamedTuple):
    """The session exists in the store under this owner; work may start."""

    at: float


class WorkerAttached(NamedTuple):
    """Placement chose a worker for a role.

    `ready_s`: the seconds to open the session, by the worker's queue and pace. `local`: of a
    verifier, the methods by which it drafts itself.
    """

    at: float
    role: Role
    worker: str
    ready_s: float = 0.0
    local: tuple[str, ...] = ()


class Started(NamedTuple):
    """The worker has read the text of this opening."""

    at: float
    role: Role
    worker: str
    opening: int
    cached_tokens: int = 0


class StepsTaken(NamedTuple):
    """Steps of the verifier, of one interval.

    `lag_s`: seconds for which steps are joined now, and of a message there and one back.
    """

    at: float
    worker: str
    taken: tuple[Taken, ...]
    lag_s: float = 0.0


class StatesTold(NamedTuple):
    """States of the target at tokens that the verifier read before any step."""

    at: float
    worker: str
    states: TextStates


class Waited(NamedTuple):
    """The worker says why the session took part in no step lately."""

    at: float
    worker: str
    reason: WaitReason


class WorkerLost(NamedTuple):
    """The worker is gone or gave the session up.

    `fatal`: no other worker would succeed (the session itself is refused); `busy`: the worker
    is only full. `opening` is the one that failed, so that a late notice hits no newer one;
    None = the whole worker is lost. `for_good`: the session can never go on; `costly`: because
    its response format takes too much.
    """

    at: float
    role: Role
    worker: str
    reason: str = ""
    fatal: bool = False
    busy: bool = False
    opening: int | None = None
    for_good: bool = False
    costly: bool = False


class Persisted(NamedTuple):
    """The store has acknowledged everything up to this round."""

    at: float
    round: int


class Capped(NamedTuple):
    """The load allows at most `window` draft tokens from now on."""

    at: float
    window: int


class Detached(NamedTuple):
    """Nobody reads the stream any more."""

    at: float


class Reattached(NamedTuple):
    """Somebody reads the stream again."""

    at: float


class AbortRequested(NamedTuple):
    """End the session at once."""

    at: float


class Tick(NamedTuple):
    """Time went by."""

    at: float


class StoodStill(NamedTuple):
    """This process stalled for so many seconds, which count against no worker."""

    at: float
    seconds: float


Event = (
    Begin
    | WorkerAttached
    | Started
    | StepsTaken
    | StatesTold
    | Waited
    | WorkerLost
    | Persisted
    | Capped
    | Detached
    | Reattached
    | AbortRequested
    | Tick
    | StoodStill
)

# --- Actions ---------------------------------------------------------------------


class NeedWorker(NamedTuple):
    """Ask placement for a worker; answered by WorkerAttached, or by nothing."""

    role: Role


class Start(NamedTuple):
    """Open the session on an attached worker, or open it there anew."""

    role: Role
    worker: str
    message: StartVerify | StartDraft


class Grant(NamedTuple):
    """Let the output get so long."""

    limit: int


class SetWindow(NamedTuple):
    """Tell a worker how many tokens it may draft ahead, or verify in a step."""

    worker: str
    window: int


class SetDraftedFor(NamedTuple):
    """Tell the verifier whether a drafter has the session from now on."""

    worker: str
    drafted_for: bool


class TellStates(NamedTuple):
    """Tell the drafter states of the target."""

    worker: str
    states: TextStates


class Persist(NamedTuple):
    """Store a commit; answered by Persisted."""

    commit: Commit


class Emit(NamedTuple):
    """Hand a stored commit to the client."""

    commit: Commit


class Release(NamedTuple):
    """Close the session on a worker and forget the worker."""

    role: Role
    worker: str


class Finish(NamedTuple):
    """The session is over; everything was emitted."""

    ending: Ending


class Suspend(NamedTuple):
    """The session stops here and can be resumed."""

    reason: SuspendReason
    detail: str = ""


Action = (
    NeedWorker
    | Start
    | Grant
    | SetWindow
    | SetDraftedFor
    | TellStates
    | Persist
    | Emit
    | Release
    | Finish
    | Suspend
)
