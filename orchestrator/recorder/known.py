"""What a recorder knows of a session at work."""

from __future__ import annotations

from dataclasses import dataclass, field

from opentelemetry.trace import Span

from orchestrator.recorder.spans import SessionSpans
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.state import State
from services.contract.frames import WaitReason
from services.contract.types import Role


@dataclass(slots=True)
class Known:
    """A session since it began here."""

    config: SessionConfig
    span: Span
    traceparent: str
    spans: SessionSpans | None
    started_at: float
    state: State | None = None
    # When rounds went to the store.
    storing: dict[int, float] = field(default_factory=dict)
    # How far its drafter was told to be ahead; None: not told. The draft tokens of its last step.
    window: int | None = None
    drafted: int = 0
    # Why a step without a draft, if it was its last one, had none.
    fallback: str = ""
    # Why it takes no part in steps, as its verifier said last.
    waits: WaitReason | None = None
    # Who reads its text, in which opening, and how long that is; whether steps came of it already.
    reading: tuple[str, int, int] | None = None
    begun: bool = False
    opened: set[Role] = field(default_factory=set)
    totals: SpecTotals = field(default_factory=SpecTotals)
    emitted: int = 0
    near_ties: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    finish: str = ""
    error: str = ""

    @property
    def rests(self) -> bool:
        """Whether whoever drafts for it was told to draft nothing, as that does not pay."""
        state = self.state
        if state is None or self.window != 0:
            return False
        here = state.verifier is not None and bool(state.verifier.method)
        return here or state.drafter is not None

    # The load that sessions put on workers, present or not: the signals of autoscaling. Workers
    # that are scaled to zero cannot report their load; sessions can. Each is counted by its own
    # orchestrator alone, so the figures of all add up.

    @property
    def queued_tokens(self) -> int:
        """Tokens that it waits with: its text to read, or what its next step is likely to have."""
        state = self.state
        if state is None or state.phase is not Phase.RUNNING:
            return 0
        if state.verifier is None or not state.verifier.opened:
            return len(state.config.prompt) + len(state.committed)
        return 1 + self.drafted if state.limit > len(state.committed) else 0

    @property
    def wants_drafts(self) -> bool:
        """Whether a drafter would have work with it."""
        state = self.state
        if state is None or state.phase is not Phase.RUNNING or self.rests:
            return False
        return state.wants_drafter and state.window > 0

    @property
    def decodes_plainly(self) -> bool:
        """Whether nobody drafts for it now."""
        state = self.state
        if state is None:
            return False
        if self.rests:
            return True
        drafter, verifier = state.drafter, state.verifier
        if verifier is not None and verifier.opened and verifier.method:
            return False
        return drafter is None or not drafter.opened
