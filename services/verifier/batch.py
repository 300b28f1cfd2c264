"""What one step holds: a part per session, its place in the forward, its choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from services.common.engine import Segment
from services.common.engine.sampling import choose
from services.common.steps import StepEntry
from services.verifier.session import Task, VerifySession
from services.verifier.verdicts import row_contexts


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step; a prefill has no task."""

    session: VerifySession
    segment: Segment
    task: Task | None = None

    @property
    def rows(self) -> int:
        """Tokens it adds to the forward."""
        return len(self.segment.token_ids)


@dataclass(frozen=True, slots=True)
class Judged:
    """A block with the logits [1 + draft tokens, V] of its rows."""

    session: VerifySession
    task: Task
    logits: Tensor


def block_part(session: VerifySession, task: Task) -> Part:
    """A block, fed after the one token of the text whose K/V is missing."""
    parents = task.tree.parents
    rows = None if parents is None else (-1, *(parent + 1 for parent in parents))
    return Part(session, Segment(session.cache, session.segment_tokens(task), rows), task)


def prompt_part(session: VerifySession, share: int) -> Part:
    """The next `share` tokens of a prefill."""
    start = session.cache.length
    tokens = session.text[start : start + share]
    return Part(session, Segment(session.cache, tokens, logits_from=len(tokens)))


def choices(judged: Sequence[Judged]) -> list[list[int]]:
    """The target's choice at every row of every block, worked out in one batch."""
    rows = [row_contexts(block.session, block.task) for block in judged]
    if not rows:
        return []
    logits = judged[0].logits if len(judged) == 1 else torch.cat([own.logits for own in judged])
    chosen = iter(choose(logits, list(chain.from_iterable(rows))))
    return [[next(chosen) for _ in own] for own in rows]


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
