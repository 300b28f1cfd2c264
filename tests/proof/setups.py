"""Who does what, and when, in a session that is to be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from orchestrator.core.events import Event
from orchestrator.core.pacing import FinishedRound, Send, View

from orchestrator.steering.config import Limits, SessionConfig
from services.contract.types import DraftTree, Proposal, ResolvedSampling, VerifyMode
from tests.proof.laws import Fate, LawOf, Text, bad_row, drafted, row, target
from tests.proof.worlds import World

Rule = Callable[[Text, DraftTree, VerifyMode], Sequence[Fate]]

STANDARD, BLOCK, COUPLED = VerifyMode.STANDARD, VerifyMode.BLOCK, VerifyMode.COUPLED
MODES = pytest.mark.parametrize("mode", [STANDARD, BLOCK], ids=lambda mode: mode.name)

# Whose turn it is: a worker's, or that of the wire into or out of one.
SCHEDULES = {
    "ahead": "place place >d d> d d> d d> >v v> d d> store",
    "slow verifier": "place place >d d> d d> >v d d> d d> v> store",
    "chained": "place place >d d> d d> >v v> d d> d d> d d> >d store",
    "late drafts": "place place >v v> >d d> d >v v> d> store",
    "mortal": "place place >d d> d v? d> d >v d? v> d> store",
}


@dataclass(frozen=True, slots=True)
class Restless:
    """Sends at once whatever there is, and decodes plainly where there is nothing."""

    window: int

    def decide(self, view: View) -> Send:
        """Never wait."""
        return Send(min(view.drafted, view.room))

    def observe(self, outcome: FinishedRound) -> Restless:
        """Learn nothing."""
        return self


def sampled(text: Text, token: int) -> DraftTree:
    """A token with the law it was drawn from."""
    return DraftTree((token,), None, (row(drafted(text)),), Proposal.SAMPLED)


def unusable_after_two(text: Text, token: int) -> DraftTree:
    """The same, but the law is unusable wherever the text ends in 2: a matter of content."""
    if text[-1:] != (2,):
        return sampled(text, token)
    return DraftTree((token,), None, (bad_row(drafted(text)),), Proposal.SAMPLED)


@dataclass(frozen=True)
class Habits:
    """How the workers behave: the rule of the verifier, and what the drafter sends.

    `law` is what the drafter draws from after a text, and `tree` what it sends with the
    token drawn. A token that it `ends` with is its last until a verdict; one that it
    `holds` leaves together with the next. `deliver` stands between the workers and the
    machine. `target`: the law that the text is to have.
    """

    rule: Rule
    law: LawOf = drafted
    tree: Callable[[Text, int], DraftTree] = sampled
    ends: Callable[[int], bool] = lambda token: False
    holds: Callable[[int], bool] = lambda token: False
    deliver: Callable[[World, Event], tuple[World, Event]] = lambda world, event: (world, event)
    target: LawOf = target


def session(
    mode: VerifyMode,
    *,
    window: int = 2,
    max_tokens: int = 3,
    stops: Text = (),
    seed: int = 1,
    max_in_flight: int = 1,
    plain_ahead: bool = False,
) -> SessionConfig:
    """A session on the small laws; its workers may fail as often as a test wants."""
    limits = Limits(max_in_flight=max_in_flight, worker_attempts=1000, drafter_backoff=0.0)
    sampling = ResolvedSampling(max_tokens=max_tokens, stop_token_ids=stops)
    more = {"window": window, "plain_ahead": plain_ahead, "limits": limits}
    return SessionConfig("s", (0,), mode, sampling, seed, method="model", **more)
