"""Who does what, and when, in a session that is to be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import pytest

from orchestrator.steering.config import Limits, SessionConfig
from services.contract.types import DraftTree, Proposal, ResolvedSampling, VerifyMode
from tests.proof.laws import LawOf, Text, bad_row, drafted, row
from tests.proof.stepping import Doing, Outcome, Stepping
from tests.rules.worlds import Drafter, drafts

STANDARD, BLOCK, COUPLED = VerifyMode.STANDARD, VerifyMode.BLOCK, VerifyMode.COUPLED
MODES = pytest.mark.parametrize("mode", [STANDARD, BLOCK], ids=lambda mode: mode.name)

# Whose turn it is. A worker's: `d` draws, `send` sends, `v` begins a step or ends it; that of
# the wire into or out of one, for one message or (`*`) for all; of the orchestrator's, to take
# steps that were joined; of the store.
SCHEDULES = {
    "in turns": "place place >d* d send d>* >v* v v v>* take store",
    "ahead": "place place >d* d send d>* >v* v d send d>* >v* v v>* take store",
    "slow verifier": "place place >d* d send d>* d send d>* >v* v d send d>* >v* v v> take store",
    "chained": "place place >d d d send d>* >v* v v d send d>* >v* v v v>* take store",
    "late drafts": "place place >v* v >d* d d send d>* >v v v>* take store",
    "replaced": "place place >d* d send d>* d? place >d* d send d>* >v* v v v>* take store",
    "mortal": "place place >d* d send d>* d? >v* v d v? send d>* >v v d? v>* take v? store",
}


class Policy(Protocol):
    """How much of what a mailbox holds a step verifies."""

    def __call__(self, held: int, *, whole: bool) -> int | None:
        """A size; None: the session waits for more. `whole`: nothing more comes."""


@dataclass(frozen=True, slots=True)
class Restless:
    """Verifies at once whatever there is, and decodes plainly where there is nothing."""

    def __call__(self, held: int, *, whole: bool) -> int:
        """Never wait."""
        return held


@dataclass(frozen=True, slots=True)
class Fixed:
    """Waits for a whole draft."""

    size: int

    def __call__(self, held: int, *, whole: bool) -> int | None:
        """Full drafts, or what there is when nothing more comes."""
        return held if whole or held >= self.size else None


@dataclass(frozen=True, slots=True)
class Sparing:
    """Verifies all but the last token, for which the last row is there when the step ends."""

    def __call__(self, held: int, *, whole: bool) -> int:
        """One less."""
        return max(0, held - 1)


def sampled(text: Text, token: int) -> DraftTree:
    """A token with the law it was drawn from."""
    return DraftTree((token,), None, (row(drafted(text)),), Proposal.SAMPLED)


def unusable_after_two(text: Text, token: int) -> DraftTree:
    """The same, but the law is unusable wherever the text ends in 2: a matter of content."""
    if text[-1:] != (2,):
        return sampled(text, token)
    return DraftTree((token,), None, (bad_row(drafted(text)),), Proposal.SAMPLED)


def trees_of(
    shape: Text, *, without_replacement: bool
) -> Callable[[Text, int], Sequence[tuple[float, DraftTree]]]:
    """Every tree of one shape behind a text, with its probability."""
    own = Drafter(
        lambda text: np.array(drafted(text)),
        lambda text: row(drafted(text)),
        without_replacement=without_replacement,
    )

    @cache
    def every(text: Text, _room: int) -> list[tuple[float, DraftTree]]:
        return [(draft.weight, draft.tree) for draft in drafts(own, text, shape)]

    return every


@dataclass(frozen=True)
class Habits:
    """How the workers behave: what a verifier's step comes to, and what the drafter sends.

    `law` is what the drafter draws from after a text, and `tree` what it keeps with the
    token drawn. A token that it `ends` with is its last until it hears of a step; one that it
    `holds` leaves together with the next. `trees`: every draft by itself that may be drawn behind a
    text, in place of tokens one by one. `judged` stands in for a step, as a wrong verifier does.
    """

    stepping: Stepping
    law: LawOf = drafted
    tree: Callable[[Text, int], DraftTree] = sampled
    ends: Callable[[int], bool] = lambda token: False
    holds: Callable[[int], bool] = lambda token: False
    trees: Callable[[Text, int], Sequence[tuple[float, DraftTree]]] | None = None
    judged: Callable[[Stepping, Text, Doing], Iterable[Outcome]] = Stepping.outcomes
    promised: LawOf | None = None

    @property
    def target(self) -> LawOf:
        """The law that the text is to have: `promised`, or that of the steps."""
        return self.promised or self.stepping.law


def real(mode: VerifyMode, *, max_tokens: int = 3, stops: Text = ()) -> Stepping:
    """Steps on the small laws."""
    return Stepping(mode, ResolvedSampling(max_tokens=max_tokens, stop_token_ids=stops))


def session(
    stepping: Stepping, *, window: int = 2, num_candidates: int = 1, synchronous: bool = False
) -> SessionConfig:
    """A session whose workers may fail as often as a test wants."""
    limits = Limits(worker_attempts=1000, drafter_backoff=0.0)
    own = ("s", stepping.prompt, stepping.mode, stepping.sampling, stepping.seed)
    more = {"window": window, "num_candidates": num_candidates, "synchronous": synchronous}
    return SessionConfig(*own, method="model", limits=limits, **more)
