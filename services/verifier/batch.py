"""What one step holds: a part per session, and its place in the forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.port import Segment
from services.runtime.step_records import StepEntry
from services.verifier.judging import Judged
from services.verifier.session import VerifySession
from services.verifier.types import Task


@dataclass(frozen=True, slots=True)
class Part:
    """One session's part of a step: so many rows of its `prompt`, a block, or one after the other.

    Without a segment there is nothing to feed: the session's retained row is all
    that an empty block needs.
    """

    session: VerifySession
    segment: Segment | None
    task: Task | None = None
    prompt: int = 0

    @property
    def rows(self) -> int:
        """Tokens it adds to the forward."""
        return len(self.segment.token_ids) if self.segment is not None else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What the verdicts of a step tell of it; `started` is on the core's clock, in seconds.

    `forms`: seconds that following response formats took of it, which says nothing of rows.
    """

    started: float
    sessions: int
    rows: int
    forms: float = 0.0

    @classmethod
    def of(cls, parts: Sequence[Part], started: float) -> Step:
        """The step that consists of these parts."""
        return cls(started, len(parts), sum(part.rows for part in parts))


def block_part(session: VerifySession, task: Task) -> Part:
    """A block, fed after the text."""
    return Part(session, session.segment(task), task)


def prompt_part(session: VerifySession, share: int) -> Part:
    """The next `share` tokens of a prefill."""
    return Part(session, session.prompt_segment(share), prompt=share)


def last_part(session: VerifySession, share: int, task: Task) -> Part:
    """The last `share` tokens of a prefill, and after them a block that is a chain."""
    block = session.segment(task)
    assert block is not None
    assert block.parents is None
    tokens = (*session.prompt_segment(share).token_ids, *block.token_ids)
    return Part(session, Segment(session.cache, tokens, logits_from=share), task, share)


def judged(
    session: VerifySession, task: Task, logits: Tensor | None, states: Tensor | None = None
) -> Judged:
    """A block with the logits of all its rows, the retained one first.

    `logits` [rows fed, V]; None where nothing was fed. `states` [rows fed, width]: where they are
    told.
    """
    retained = session.retained
    if retained is None:
        assert logits is not None
        rows = 1 + len(task.tree)
        ahead = logits[rows:].clone() if len(logits) > rows else None
        own = None if states is None else states[:rows]
        return Judged(session, task, logits[:rows], ahead, own)
    rows_held = None if session.telling is None else session.telling.held
    return Judged(
        session, task, _behind(retained, logits), states=_behind_held(rows_held, states, task)
    )


def _behind(held: Tensor, rows: Tensor | None) -> Tensor:
    """Rows behind the one that is held."""
    return held[None] if rows is None else torch.cat([held[None], rows])


def _behind_held(held: Tensor | None, states: Tensor | None, task: Task) -> Tensor | None:
    """The same for states, some of which may not be there."""
    if held is None or (states is None and len(task.tree)):
        return None
    return _behind(held, states)


def step_entries(part: Part, started: float) -> Iterator[StepEntry]:
    """What tracing learns of a part; `started` is on the clock of `Block.arrived`."""
    session, task = part.session, part.task
    if part.prompt:
        yield StepEntry(
            session.key[1], "prefill", part.prompt, traceparent=session.opening.traceparent
        )
    if task is None:
        return
    command = task.block.command
    yield StepEntry(
        session=session.key[1],
        kind="verify",
        tokens=len(task.tree),
        round=command.round,
        traceparent=command.traceparent or session.opening.traceparent,
        queue_ms=session.queued_ms(task.block, started),
    )
