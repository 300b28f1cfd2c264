"""Synchronous trees, as deep as pays by what was learned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core.pacing.baselines import Fixed
from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.policy import Decision, FinishedRound, View

WORTH_A_CHANGE = 1.02


@dataclass(frozen=True, slots=True)
class Levels:
    """Synchronous trees as deep as pays, at most `most` levels.

    Nothing can be drafted after a tree, so every start is cold: the depth D >= 1
    maximises E[tokens](D) / (wait(D) + round(D)). Under rejection sampling D stays for
    the session: with another window the drafter may draft a tree again, and no place
    may be drawn twice in an epoch.
    """

    most: int
    learned: Learned = field(default_factory=Learned)
    window: int = 0
    patience: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", self._depth())

    @property
    def promise(self) -> float:
        """Expected tokens per millisecond; 0 = nothing is known."""
        return self._pace(self.window) if self.learned.draft_ms else 0.0

    def decide(self, view: View) -> Decision:
        """Send the tree when it has come, or when none will."""
        return Fixed(self.window, self.patience).decide(view)

    def observe(self, outcome: FinishedRound) -> Levels:
        """Learn from the round, and choose the depth anew."""
        return replace(self, learned=self.learned.add(outcome))

    def informed(self, learned: Learned) -> Levels:
        """The policy with this knowledge instead of its own."""
        return replace(self, learned=learned, window=0)

    def _depth(self) -> int:
        """The best depth; a change must gain more than a trifle."""
        if self.window and not self.learned.exact:
            return self.window
        if not self.learned.draft_ms:
            return self.most
        best = max(range(1, self.most + 1), key=self._pace)
        keeps = self.window and self._pace(best) <= WORTH_A_CHANGE * self._pace(self.window)
        return self.window if keeps else best

    def _pace(self, depth: int) -> float:
        """Tokens per millisecond of rounds with trees of this depth."""
        learned = self.learned
        levels = sum(learned.later_rate**level for level in range(depth))
        wait = learned.hop_ms + depth * learned.draft_ms
        return (1.0 + learned.first_rate * levels) / (wait + learned.costs.round_ms(depth))
