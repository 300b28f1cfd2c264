"""What sessions learn for those after them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core.pacing.adaptive import Adaptive, Levels
from orchestrator.core.pacing.learned import SEED_WEIGHT, Learned
from orchestrator.core.pacing.policy import Policy
from orchestrator.core.pacing.resting import Fallback, Rate


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known of one kind of drafts: hits, costs, and the pace of plain decoding."""

    learned: Learned | None = None
    plain: Rate = field(default_factory=Rate)

    def seeded(self, policy: Policy) -> Policy:
        """The policy of a new session: it starts from this, with limited weight."""
        if not isinstance(policy, Fallback):
            return policy
        plain = self.plain.scaled(SEED_WEIGHT)
        return replace(policy, inner=self._told(policy.inner), plain=plain)

    def _told(self, inner: Policy) -> Policy:
        if self.learned is None or not isinstance(inner, Adaptive | Levels):
            return inner
        return inner.told(self.learned.weakened())

    def joined(self, policy: Policy) -> Experience:
        """With what a session found out that ends with this policy."""
        if not isinstance(policy, Fallback):
            return self
        plain = policy.plain if policy.plain.rounds else self.plain
        if not isinstance(policy.inner, Adaptive | Levels):
            return replace(self, plain=plain)
        learned = policy.inner.learned
        if not learned.line.weight:
            return replace(self, plain=plain)
        return Experience(self.learned.joined(learned) if self.learned else learned, plain)
