"""What stands between a session that is steered and the links to its workers.

The links' side, the hub, takes frames apart, hands them on to drafters, and tells each session what
was decided for it, several steps at a time where many sessions are at work. The session's side
says which workers it has, and how far they may go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from services.contract.frames import StepRow, WaitReason
from services.contract.types import Role
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
)


class StepFacts(NamedTuple):
    """What a frame says of its step, for all its sessions.

    `started_ns`: Unix time of the verifier; `step_ms`: milliseconds; `sessions` and `rows` of all
    links. `heard_at`: when the frame was here, on the session's clock, in seconds.
    """

    step: int
    started_ns: int = 0
    step_ms: float = 0.0
    sessions: int = 0
    rows: int = 0
    heard_at: float = 0.0


class Taken(NamedTuple):
    """What a step brought to a session.

    `window`: how far its drafter is to be ahead from now on; None: as before.
    """

    row: StepRow
    facts: StepFacts
    window: int | None = None


# What a worker says of one session; a WaitReason: why it took no part in steps lately.
Said = SessionStarted | SessionGone | TextStates | PromptScores | WaitReason

# What a session says to a worker by itself.
Told = StartVerify | StartDraft | EndSession | SetWindow | SetDraftedFor | TextStates


class Steered(Protocol):
    """A session, as the hub sees it. Nothing here waits."""

    def took(self, worker: str, taken: Sequence[Taken], /) -> None:
        """Steps that its verifier took, in order; each follows the text received before.

        The hub has looked at every row: it is of the current opening, begins where the text
        ended, and stays in the limit and the vocabulary.
        """
        ...

    def hear(self, worker: str, role: Role, event: Said, /) -> None:
        """What a worker says of it; openings are not looked at."""
        ...

    def lost(self, worker: str, role: Role, reason: str, /) -> None:
        """The worker is gone, and the session with it."""
        ...


class Hub(Protocol):
    """The links to all workers, as a session sees them. Nothing here waits."""

    @property
    def interval(self) -> float:
        """Seconds for which a session's steps are joined now; 0 = they come at once."""
        ...

    @property
    def hop(self) -> float:
        """Seconds of a message to a worker, as measured lately."""
        ...

    def enter(self, session: Steered, vocab_size: int = 0) -> int:
        """A handle for a session, which no other one had or will have; `vocab_size` 0: any."""
        ...

    def leave(self, handle: int) -> None:
        """The session is over here. May be repeated."""
        ...

    def send(self, worker: str, command: Told) -> None:
        """Send a command; swallowed by a worker that is gone."""
        ...

    def verified_by(
        self,
        handle: int,
        worker: str | None,
        opening: int = 0,
        received: int = 0,
        limit: int = 0,
        window: int = 0,
    ) -> None:
        """Whose steps count from now on; None: nobody's.

        Called right before StartVerify is sent: in this `opening`, behind `received` tokens of
        output, up to `limit`, past which one step may go by `window` draft tokens.
        """
        ...

    def drafted_by(self, handle: int, worker: str | None) -> None:
        """Who gets the session's steps, and whose drafts go to its verifier; None: nobody."""
        ...

    def flush(self, handle: int) -> None:
        """Tell the session at once what was held back to be joined, if anything was.

        It calls this before it opens itself anywhere, so that no step is between its text and
        what a worker is told of it. The hub does so itself before it tells it that one is lost.
        """
        ...

    def soon(self, act: Callable[[], object]) -> None:
        """Do this for a session, behind what others have to do."""
        ...

    def grant(self, handle: int, limit: int) -> None:
        """How long the output may get; goes out with others, soon."""
        ...
