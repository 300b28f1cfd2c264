"""What was decided in rounds, as the store, statistics, spans and readers see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from services.contract.types import FinishReason, LogprobRow, Origin, VerifyMode


class SuspendReason(Enum):
    """Why a session stopped before its end. It stays resumable, unless it is for good."""

    NO_VERIFIER = "no verifier could take the session in time"
    DEADLINE = "the session's deadline passed"
    DETACHED = "nobody was attached for the grace time"
    REFUSED = "the verifier refused the session"
    IMPOSSIBLE = "nobody can go on with the session"
    COSTLY = "nobody goes on with the session"

    @property
    def for_good(self) -> bool:
        """Whether it has ended."""
        return self in (SuspendReason.IMPOSSIBLE, SuspendReason.COSTLY)


class SourceCount(NamedTuple):
    """Draft tokens of one source, a number of `DraftSource`, and how many were accepted."""

    source: int
    drafted: int
    accepted: int


class RoundRecord(NamedTuple):
    """One verification, as statistics, spans and the store see it.

    Times in milliseconds; `started_at` and `ended_at` on the driver's clock. `rejected` are
    draft tokens of the block that the text did not take, `unjudged`, in records of earlier
    versions, those drafted beyond it that nobody judged. `sources` are those that the block had
    tokens of. `hold_ms`: how much of the wait was for a draft; `age_ms`: for how long the draft had
    been there at the step.

    One that was read from the store has Unix time, zero for what is not kept, and no `mode`
    where it is not known here.
    """

    round: int
    epoch: int
    base_len: int
    draft_tokens: int
    accepted_tokens: int
    emitted_tokens: int
    draft_ms: float
    verify_ms: float
    queue_ms: float
    round_ms: float
    batch_size: int
    drafter: str
    verifier: str
    mode: VerifyMode | None
    started_at: float
    ended_at: float
    bad_q_rows: int = 0
    near_ties: int = 0
    rejected: tuple[int, ...] = ()
    unjudged: tuple[int, ...] = ()
    sources: tuple[SourceCount, ...] = ()
    hold_ms: float = 0.0
    age_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Instead of a stop: why the session can never go on; `costly`: it takes too much."""

    reason: str
    costly: bool = False


Matched = str | int | GivenUp | None
"""What ended an output: a stop string, a stop token's id, or what keeps it from going on."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an output ended; ABORT for one given up."""

    reason: FinishReason
    matched: Matched = None


class Commit(NamedTuple):
    """Tokens that became final and are stored together: they follow output[:base_len].

    `records`: of the rounds that brought them, one behind the other; at least one.
    """

    records: tuple[RoundRecord, ...]
    base_len: int
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[LogprobRow, ...] = ()
    ending: Ending | None = None

    @property
    def record(self) -> RoundRecord:
        """Of its last round, by whose number it is stored."""
        return self.records[-1]
