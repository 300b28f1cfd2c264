"""What orchestrators and workers say of single sessions, from protocol 2 on.

Sessions have a handle, a number that an orchestrator gives to each of its sessions and uses for no
other. Their openings are counted, so that what is said of an earlier one hits no newer one.
What is said of many sessions at a time is in `frames`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from services.contract.frames import DraftFrame, Grants, StepFrame
from services.contract.types import (
    Draining,
    FailureReason,
    LogprobRow,
    Progress,
    ResolvedSampling,
    VerifyMode,
)

PROTOCOL = 2
"""What a worker that takes these messages says of itself."""


@dataclass(frozen=True, slots=True)
class StartVerify:
    """Open a session on a verifier, or anew with a higher opening; see the protocol."""

    handle: int
    opening: int
    session_id: str
    term: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    limit: int
    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    window: int
    depth: int = 0
    method: str = ""
    first_drafts: int = 0
    drafted_for: bool = False
    traceparent: str = ""
    cache_scope: str = ""
    fork_scope: str = ""
    phrase_scope: str = ""
    top_rows: int = 0
    state_layers: tuple[int, ...] = ()
    score_from: int = 0
    priority: int = 0
    num_candidates: int = 1
    pacing: str = ""


@dataclass(frozen=True, slots=True)
class StartDraft:
    """Open a session on a drafter, or anew with a higher opening; see the protocol."""

    handle: int
    opening: int
    session_id: str
    term: int
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    window: int
    num_candidates: int = 1
    method: str = ""
    traceparent: str = ""
    options: bytes = b""
    vocab_size: int = 0
    phrase_scope: str = ""
    top_rows: int = 0
    fork_scope: str = ""
    synchronous: bool = False


class EndSession(NamedTuple):
    """Forget a session."""

    handle: int


class SetWindow(NamedTuple):
    """Verify, or draft, so many tokens ahead of the text at most from now on."""

    handle: int
    window: int


class SetDraftedFor(NamedTuple):
    """Whether a drafter has the session from now on."""

    handle: int
    drafted_for: bool


class TextStates(NamedTuple):
    """The target's states at tokens of a text that was read; see `states`."""

    handle: int
    opening: int
    position: int
    states: bytes


class SessionStarted(NamedTuple):
    """The worker has read the session's text; how much of it was there, and the time it took."""

    handle: int
    opening: int
    cached_tokens: int = 0
    prefill_ms: float = 0.0


class SessionGone(NamedTuple):
    """One session is closed on the worker, and only this one."""

    handle: int
    opening: int
    reason: FailureReason
    message: str = ""


class PromptScores(NamedTuple):
    """How likely tokens of a prompt are, from `position` on."""

    handle: int
    opening: int
    position: int
    rows: tuple[LogprobRow, ...]


class Waiting(NamedTuple):
    """Sessions that took part in no step for a while (u32), and a `WaitReason` of each (u8)."""

    handles: bytes
    reasons: bytes


VerifierCommand = StartVerify | EndSession | SetWindow | SetDraftedFor | Grants | DraftFrame
VerifierEvent = (
    StepFrame
    | SessionStarted
    | SessionGone
    | Progress
    | Draining
    | TextStates
    | PromptScores
    | Waiting
)
DrafterCommand = StartDraft | EndSession | SetWindow | TextStates | StepFrame
DrafterEvent = DraftFrame | SessionStarted | SessionGone | Progress | Draining
