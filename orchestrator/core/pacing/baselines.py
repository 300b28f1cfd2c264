"""Policies that do not learn what pays: the baselines of the literature."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.pacing.costs import blend
from orchestrator.core.pacing.policy import Decision, FinishedRound, Send, View, wait_for

FIRST_PATIENCE = 0.05
HOP_ALLOWANCE = 0.005


@dataclass(frozen=True, slots=True)
class Eager:
    """Send whatever is drafted, as soon as the verifier is free (AMUSD).

    Without a draft it waits for one token, but at most half a plain round, since a round
    without a draft yields a token, too.
    """

    window: int
    draft_ms: float = 0.0
    round_ms: float = 0.0

    def decide(self, view: View) -> Decision:
        """Send the whole tail; wait a moment for a first token."""
        if view.drafted or not view.drafting or view.room == 0:
            return Send(min(view.drafted, view.room))
        return wait_for(view, self._patience()) or Send(0)

    def _patience(self) -> float:
        if self.round_ms == 0.0 or self.draft_ms == 0.0:
            return FIRST_PATIENCE
        return min(HOP_ALLOWANCE + 2e-3 * self.draft_ms, 0.5e-3 * self.round_ms)

    def observe(self, outcome: FinishedRound) -> Eager:
        """Learn how long a drafted token and a round take."""
        draft_ms = self.draft_ms
        if outcome.draft_tokens and outcome.draft_ms:
            draft_ms = blend(draft_ms, outcome.draft_ms / outcome.draft_tokens)
        return Eager(self.window, draft_ms, blend(self.round_ms, outcome.round_ms))


@dataclass(frozen=True, slots=True)
class Fixed:
    """Exactly `window` tokens a round, one side at a time (speculative decoding).

    After `patience` seconds it sends what is drafted.
    """

    window: int
    patience: float = 1.0

    def decide(self, view: View) -> Decision:
        """Send when the block is full or cannot become fuller; never while one is under way."""
        if view.live:
            return Send(0)
        wanted = min(self.window, view.room)
        if view.drafted >= wanted or not view.drafting:
            return Send(min(view.drafted, wanted))
        return wait_for(view, self.patience) or Send(min(view.drafted, wanted))

    def observe(self, outcome: FinishedRound) -> Fixed:  # noqa: ARG002 - nothing to learn
        """Nothing is learned."""
        return self
