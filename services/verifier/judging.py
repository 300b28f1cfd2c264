"""What the rules are asked about drafts behind texts, by the sessions' parameters.

GREEDY and COUPLED walk the target's own choices, asked for only at the rows that are reached.
STANDARD and BLOCK compare the laws of target and draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from services.contract.types import DraftTree
from services.engine.noise import Stream
from services.engine.sampling import RowContext, choose_closely, forbids_all, log_law
from services.engine.structure import StructureError
from services.verifier.fed_text import FedText
from services.verifier.rules import Proposed, Walk, walk_rows
from services.verifier.trees import depths, paths


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
    def logits(self) -> Tensor:
        """[1 + draft tokens, V]."""

    def number(self, stream: Stream, node: int, candidate: int, /) -> float:
        """A random number of its own: no other draft has the same."""


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


def walks(judged: Sequence[Judgeable], rounding: float = 0.0) -> list[tuple[Walk, set[int]]]:
    """The target's own choices down each draft, and the rows whose choice is a near-tie.

    `rounding`: by how much logits may be off; tokens chosen by less than that are near-ties.
    """
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

    walked = walk_rows([block.tree for block in judged], choices)
    return list(zip(walked, close, strict=True))


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


def why_none(block: Judgeable) -> Unlawful:
    """Why no token can follow the text: the model, or what the session asks for."""
    context = row_contexts(block)[0]
    if context.matcher is not None and context.matcher.stuck:
        # What the matcher says may quote the format, and this goes to logs.
        return StructureError("it cannot be followed any further")
    return NothingAllowed() if forbids_all(block.logits[0], context) else BrokenLaw()
