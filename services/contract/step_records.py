"""What a worker's engine step did, told to whoever traces it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepEntry:
    """One session's part of a step.

    `kind` is "verify", "prefill", "draft" or, of tokens that were drafted before they were
    asked for, "prepared"; `round` is 0 where no verification
    round is concerned; `queue_ms` is the wait before the step; `tokens` counts
    draft tokens checked, prompt tokens fed or tokens drafted.
    """

    session: str
    kind: str
    tokens: int
    round: int = 0
    traceparent: str = ""
    queue_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One batched forward pass; times are Unix nanoseconds."""

    started_ns: int
    ended_ns: int
    entries: tuple[StepEntry, ...] = ()


OnStep = Callable[[StepRecord], None]
