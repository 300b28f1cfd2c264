"""What one step holds: a part per session, and its place in the forward."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from services.contract.types import Allowance, DraftTree, FailureReason, Verify
from services.engine.noise import Stream, uniform
from services.engine.port import Segment
from services.engine.sampling import NO_CHOICE, draw
from services.runtime.step_records import StepEntry
from services.scheduling.tree_budget import EDGES
from services.verifier.judging import Unlawful, proposals, walks, why_none
from services.verifier.refusals import Limits, Refusal, check_tree
from services.verifier.rules import Outcome, Walk, judge
from services.verifier.session import VerifySession
from services.verifier.types import Task

MOST_PRICES = 256
"""Numbers of nodes that an allowance may have prices for."""


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


@dataclass(frozen=True, slots=True)
class Judged:
    """A block with the logits [1 + draft tokens, V] of its rows, and [L, V] of rows ahead.

    `states` [1 + draft tokens, width]: those of the rows' tokens, where they are told.
    """

    session: VerifySession
    task: Task
    logits: Tensor
    ahead: Tensor | None = None
    states: Tensor | None = None

    @property
    def tree(self) -> DraftTree:
        """What is left to verify."""
        return self.task.tree

    @property
    def base_len(self) -> int:
        """Tokens of the output before it."""
        return self.task.base_len

    @property
    def always_emits(self) -> bool:
        """Whether a bonus is wanted, or there is nothing but that."""
        return self.task.always_emits

    def number(self, stream: Stream, node: int, candidate: int) -> float:
        """A random number of its own: no other block, epoch or term has the same."""
        opening, command = self.session.opening, self.task.block.command
        counters = (opening.term, command.epoch, command.round, node, candidate)
        return uniform(opening.seed, stream, *counters)


@dataclass(frozen=True, slots=True)
class Decision:
    """The accepted nodes of a block and the token after them, None where none is emitted.

    There are nodes then, or a block that was accepted whole, without a bonus.
    """

    path: tuple[int, ...]
    final_token: int | None
    all_accepted: bool
    bad_q_rows: int = 0
    near_ties: int = 0

    @property
    def leaf_row(self) -> int:
        """The row after the last accepted token: 0 = the root."""
        return self.path[-1] + 1 if self.path else 0


def decide(judged: Sequence[Judged], rounding: float = 0.0) -> list[Decision | Unlawful]:
    """What every block emits, worked out together; what else, for one without a token.

    `rounding`: by how much logits may be off; tokens chosen by less than that are near-ties.
    """
    exact = [block for block in judged if block.session.opening.mode.exact_match]
    others = [block for block in judged if not block.session.opening.mode.exact_match]
    decisions = dict(zip(map(id, exact), _decide_exactly(exact, rounding), strict=True))
    decisions |= dict(zip(map(id, others), _decide_by_rejection(others), strict=True))
    return [decisions[id(block)] for block in judged]


def _decide_exactly(judged: Sequence[Judged], rounding: float) -> list[Decision | Unlawful]:
    walked = walks(judged, rounding)
    return [_exact(block, *own) for block, own in zip(judged, walked, strict=True)]


def _exact(block: Judged, walked: Walk, close: Collection[int]) -> Decision | Unlawful:
    """`close`: the rows of near-ties; one whose token is not emitted counts when it is again."""
    emits = block.always_emits or not walked.all_accepted
    emits = emits and walked.final_token != NO_CHOICE
    if not emits and not walked.path:
        return why_none(block)
    token = walked.final_token if emits else None
    decision = Decision(walked.path, token, walked.all_accepted)
    near = len(close) if emits else len(set(close) - {decision.leaf_row})
    return replace(decision, near_ties=near)


def _decide_by_rejection(judged: Sequence[Judged]) -> list[Decision | Unlawful]:
    if not judged:
        return []
    outcomes = judge(proposals(judged))
    return [_rejection(block, outcome) for block, outcome in zip(judged, outcomes, strict=True)]


def _rejection(block: Judged, outcome: Outcome) -> Decision | Unlawful:
    token = None
    if block.always_emits or not outcome.all_accepted:
        number = block.number(*outcome.final, 0)
        [drawn] = draw(outcome.law[None], [number])
        if drawn == NO_CHOICE and not outcome.path:
            return why_none(block)
        token = None if drawn == NO_CHOICE else drawn
    return Decision(outcome.path, token, outcome.all_accepted, outcome.bad_q_rows)


def check_block(block: Verify, window: int, limits: Limits) -> None:
    """Raise Refusal unless the block has a tree as it should be, or an allowance in its place."""
    check_tree(block.tree, window, limits)
    if block.allowance is not None:
        _check_allowance(block, block.allowance)


def _check_allowance(block: Verify, allowance: Allowance) -> None:
    _require(block.extends_round > 0 and not len(block.tree), "allowance: beside a tree")
    most, ranges = len(allowance.prices), len(allowance.factors)
    _require(most <= MOST_PRICES, f"allowance.prices: {most}, more than {MOST_PRICES}")
    _require(ranges == len(EDGES) + 1, f"allowance.factors: {ranges}, not {len(EDGES) + 1}")
    numbers = (*allowance.prices, *allowance.factors)
    _require(all(map(math.isfinite, numbers)), "allowance: a number that is none")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise Refusal(FailureReason.INVALID, message)


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
