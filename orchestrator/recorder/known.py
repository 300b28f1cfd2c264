"""What a recorder knows of a session at work."""

from __future__ import annotations

from dataclasses import dataclass, field

from opentelemetry.trace import Span

from orchestrator.recorder.spans import SessionSpans
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.config import SessionConfig
from orchestrator.steering.rounds import Commit, RoundRecord
from orchestrator.steering.state import State
from services.contract.frames import WaitReason
from services.contract.types import Origin, Role
from services.runtime.telemetry.names import RoundOutcome


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


def outcomes(commit: Commit) -> list[tuple[RoundRecord, str]]:
    """The rounds of a commit, and how each came out."""
    found, end = [], 0
    for record in commit.records:
        end += record.emitted_tokens
        bonus = 0 < end <= len(commit.origins) and commit.origins[end - 1] is Origin.BONUS
        found.append((record, _outcome(record, bonus)))
    return found


def _outcome(record: RoundRecord, bonus: bool) -> str:
    if record.draft_tokens == 0:
        return RoundOutcome.PLAIN
    if record.accepted_tokens == 0:
        return RoundOutcome.REJECTED_ALL
    # In a tree a whole path counts as all, though other branches fell away.
    whole = bonus or record.accepted_tokens == record.draft_tokens
    return RoundOutcome.ACCEPTED_ALL if whole else RoundOutcome.PARTIAL
