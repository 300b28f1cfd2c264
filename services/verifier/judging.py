"""From the logits of a step to what each block emits, by the session's rule.

GREEDY and COUPLED walk the target's own choices, asked for only at the rows
that are reached. STANDARD and BLOCK compare the laws of target and draft; what
they leave is a law, from which the token after the accepted ones is drawn with
a number of the block's own.

Where no token can follow the accepted ones, they are emitted alone: they may end the text, which
plain decoding then never goes beyond. If they do not, the next block says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from services.contract.types import DraftTree
from services.engine.noise import Stream, uniform
from services.engine.sampling import (
    NO_CHOICE,
    RowContext,
    choose_closely,
    draw,
    forbids_all,
    log_law,
)
from services.engine.structure import StructureError
from services.verifier.fed_text import FedText
from services.verifier.rules import Outcome, Proposed, Walk, judge, walk_rows
from services.verifier.session import VerifySession
from services.verifier.trees import depths, paths
from services.verifier.types import Task


class BrokenLaw(Exception):
    """The model gave NaN or infinite logits where a token was to be chosen."""

    def __init__(self) -> None:
        super().__init__("the model gave no finite law for a token")


class NothingAllowed(Exception):
    """The law is sound, but the session's parameters leave no token of it."""

    def __init__(self) -> None:
        super().__init__(
            "response format, min_tokens, stop tokens, allowed_token_ids, bad_words and "
            "logit_bias together allow no token"
        )


Unlawful = BrokenLaw | NothingAllowed | StructureError
"""Why there is no token to choose."""


class Judgeable(Protocol):
    """A draft, none is one too, with the logits of its rows, and how its tokens are judged."""

    @property
    def session(self) -> FedText:
        """Behind whose text it is."""

    @property
    def tree(self) -> DraftTree:
        """The draft."""

    @property
    def base_len(self) -> int:
        """Tokens of the output before it."""

    @property
    def always_emits(self) -> bool:
        """Whether a token follows it even where it is accepted whole."""

    @property
    def logits(self) -> Tensor:
        """[1 + draft tokens, V]."""

    def number(self, stream: Stream, node: int, candidate: int, /) -> float:
        """A random number of its own: no other draft has the same."""


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

    There are nodes then, or a block that was accepted whole, without a bonus. `near_ties`: how many
    of them are, `final_near`: whether that token is one.
    """

    path: tuple[int, ...]
    final_token: int | None
    all_accepted: bool
    bad_q_rows: int = 0
    near_ties: int = 0
    final_near: bool = False

    @property
    def leaf_row(self) -> int:
        """The row after the last accepted token: 0 = the root."""
        return self.path[-1] + 1 if self.path else 0


def decide(judged: Sequence[Judgeable], rounding: float = 0.0) -> list[Decision | Unlawful]:
    """What every block emits, worked out together; what else, for one without a token.

    `rounding`: by how much logits may be off; tokens chosen by less than that are near-ties.
    """
    exact = [block for block in judged if block.session.opening.mode.exact_match]
    others = [block for block in judged if not block.session.opening.mode.exact_match]
    decisions = dict(zip(map(id, exact), _decide_exactly(exact, rounding), strict=True))
    decisions |= dict(zip(map(id, others), _decide_by_rejection(others), strict=True))
    return [decisions[id(block)] for block in judged]


def row_contexts(block: Judgeable) -> list[RowContext]:
    """How to choose at each row of a block; nodes of one depth share their position."""
    session = block.session
    opening, history, matcher = session.opening, session.history, session.matcher
    levels = depths(block.tree)
    by_path = history is not None or matcher is not None
    drafted = paths(block.tree) if by_path else [()] * len(levels)
    law, seed = opening.sampling, opening.seed
    return [
        RowContext(opening.mode, law, seed, block.base_len + depth, history, path, matcher)
        for depth, path in zip(levels, drafted, strict=True)
    ]


# --- by exact match ---------------------------------------------------------------


def _decide_exactly(judged: Sequence[Judgeable], rounding: float) -> list[Decision | Unlawful]:
    contexts = [row_contexts(block) for block in judged]
    close: list[set[int]] = [set() for _ in judged]

    def choices(rows: Sequence[tuple[int, int]]) -> list[int]:
        logits = torch.stack([judged[block].logits[row] for block, row in rows])
        asked = [contexts[block][row] for block, row in rows]
        chosen = choose_closely(logits, asked, rounding)
        for (block, row), (_, near) in zip(rows, chosen, strict=True):
            if near:
                close[block].add(row)
        return [token for token, _ in chosen]

    walks = walk_rows([block.tree for block in judged], choices)
    return [_exact(*each) for each in zip(judged, walks, close, strict=True)]


def _exact(block: Judgeable, walked: Walk, close: Collection[int]) -> Decision | Unlawful:
    """`close`: the rows of near-ties; one whose token is not emitted counts when it is again."""
    emits = block.always_emits or not walked.all_accepted
    emits = emits and walked.final_token != NO_CHOICE
    if not emits and not walked.path:
        return why_none(block)
    token = walked.final_token if emits else None
    decision = Decision(walked.path, token, walked.all_accepted)
    near = len(close) if emits else len(set(close) - {decision.leaf_row})
    return replace(decision, near_ties=near, final_near=emits and decision.leaf_row in close)


# --- by rejection -----------------------------------------------------------------


def _decide_by_rejection(judged: Sequence[Judgeable]) -> list[Decision | Unlawful]:
    if not judged:
        return []
    outcomes = judge(proposals(judged))
    return [_rejection(block, outcome) for block, outcome in zip(judged, outcomes, strict=True)]


def proposals(judged: Sequence[Judgeable]) -> list[Proposed]:
    """What the rules of rejection are asked about each of them."""
    contexts = [row_contexts(block) for block in judged]
    logits = judged[0].logits if len(judged) == 1 else torch.cat([own.logits for own in judged])
    laws = log_law(logits, list(chain.from_iterable(contexts)))
    parts = laws.split_with_sizes([len(rows) for rows in contexts])
    return [
        Proposed(block.tree, law, block.number, block.session.opening.mode)
        for block, law in zip(judged, parts, strict=True)
    ]


def _rejection(block: Judgeable, outcome: Outcome) -> Decision | Unlawful:
    token = None
    if block.always_emits or not outcome.all_accepted:
        number = block.number(*outcome.final, 0)
        [drawn] = draw(outcome.law[None], [number])
        if drawn == NO_CHOICE and not outcome.path:
            return why_none(block)
        token = None if drawn == NO_CHOICE else drawn
    return Decision(outcome.path, token, outcome.all_accepted, outcome.bad_q_rows)


def why_none(block: Judgeable) -> Unlawful:
    """Why no token can follow the text: the model, or what the session asks for."""
    context = row_contexts(block)[0]
    if context.matcher is not None and context.matcher.stuck:
        # What the matcher says may quote the format, and this goes to logs.
        return StructureError("it cannot be followed any further")
    return NothingAllowed() if forbids_all(block.logits[0], context) else BrokenLaw()
