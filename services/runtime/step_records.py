"""Records of a worker's engine steps, for tracing. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Dropped(StrEnum):
    """Why a draft token that came to a verifier was never verified."""

    LATE = "late"
    PASSED = "passed"
    DEPARTED = "departed"
    REPLACED = "replaced"
    ENDED = "ended"


class StepEntry(NamedTuple):
    """One session's part of a step.

    `kind` is "verify", "prefill" or "draft"; `queue_ms` is the wait before the step; `tokens`
    counts draft tokens verified, prompt tokens prefilled or tokens drafted. `opening` and
    `position`, the tokens of the output before: of a verification, which of the session's
    `traceparent` it belongs to; 0 of all else.
    """

    session: str
    kind: str
    tokens: int
    traceparent: str = ""
    queue_ms: float = 0.0
    opening: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One batched forward pass; times are Unix nanoseconds.

    `stood_out`: how many sessions took no part in it, by each WaitReason. `dropped`: draft tokens
    that were dropped since the step before.
    """

    started_ns: int
    ended_ns: int
    entries: tuple[StepEntry, ...] = ()
    stood_out: tuple[int, ...] = ()
    dropped: Mapping[Dropped, int] = field(default_factory=dict)


OnStep = Callable[[StepRecord], None]

OnChoices = Callable[[str, int, int], None]
"""(the rule's name, tokens that the target chose, near-ties among them)."""
