"""What one step holds: a part per session, and its place in the forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.engine import Segment
from services.common.steps import StepEntry
from services.verifier.judging import Judged
from services.verifier.session import Task, VerifySession


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step; a prefill has no task.

    Without a segment there is nothing to feed: the session's retained row is all
    that an empty block needs.
    """

    session: VerifySession
    segment: Segment | None
    task: Task | None = None

    @property
    def rows(self) -> int:
        """Tokens it adds to the forward."""
        return len(self.segment.token_ids) if self.segment is not None else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What the verdicts of a step tell of it; `started` is on the core's clock, in seconds."""

    started: float
    sessions: int
    rows: int

    @classmethod
    def of(cls, parts: Sequence[Part], started: float) -> Step:
        """The step that consists of these parts."""
        return cls(started, len(parts), sum(part.rows for part in parts))


def block_part(session: VerifySession, task: Task) -> Part:
    """A block, fed after the text."""
    return Part(session, session.segment(task), task)


def prompt_part(session: VerifySession, share: int) -> Part:
    """The next `share` tokens of a prefill."""
    start = session.cache.length
    tokens = session.text[start : start + share]
    return Part(session, Segment(session.cache, tokens, logits_from=len(tokens)))


def judged(session: VerifySession, task: Task, logits: Tensor | None) -> Judged:
    """A block with the logits of all its rows, the retained one first.

    `logits` [rows fed, V]; None where nothing was fed.
    """
    retained = session.retained
    if retained is None:
        assert logits is not None
        rows = 1 + len(task.tree)
        ahead = logits[rows:].clone() if len(logits) > rows else None
        return Judged(session, task, logits[:rows], ahead)
    kept = retained[None]
    return Judged(session, task, kept if logits is None else torch.cat([kept, logits]))


def step_entry(part: Part, started: float) -> StepEntry:
    """What tracing learns of a part; `started` is on the clock of `Block.arrived`."""
    session, task = part.session, part.task
    if task is None:
        return StepEntry(
            session.key[1], "prefill", part.rows, traceparent=session.opening.traceparent
        )
    command = task.block.command
    return StepEntry(
        session=session.key[1],
        kind="verify",
        tokens=len(task.tree),
        round=command.round,
        traceparent=command.traceparent or session.opening.traceparent,
        queue_ms=(started - task.block.arrived) * 1e3,
    )
