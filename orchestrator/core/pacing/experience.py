"""What sessions learn for later sessions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core.pacing.chained import Chained
from orchestrator.core.pacing.learned import SEED_WEIGHT, Learned
from orchestrator.core.pacing.marginal import Estimates, Marginal
from orchestrator.core.pacing.policy import Policy
from orchestrator.core.pacing.resting import Fallback, Learner, Rate
from orchestrator.core.pacing.steps import NOT_TOLD, Told


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known of one kind of drafts: hits, costs, and the speed of plain decoding.

    `estimates`: for trees whose nodes carry chances; `learned`: for all others.
    """

    learned: Learned | None = None
    plain: Rate = field(default_factory=Rate)
    estimates: Estimates | None = None

    def without_hits(self) -> Experience:
        """Only the costs of rounds and drafts."""
        return replace(
            self,
            learned=self.learned and self.learned.without_hits(),
            estimates=self.estimates and self.estimates.without_hits(),
        )

    def at_costs_of(self, other: Experience) -> Experience:
        """These hits with another one's costs, where it has any."""
        if self.learned is not None and other.learned is not None:
            return replace(other, learned=other.learned.with_hits_of(self.learned))
        if self.estimates is not None and other.estimates is not None:
            return replace(other, estimates=other.estimates.with_hits_of(self.estimates))
        return self

    def seeded(self, policy: Policy, told: Told = NOT_TOLD) -> Policy:
        """The policy of a new session: it starts from this, with limited weight.

        `told`: what its verifiers measured of their steps.
        """
        match policy:
            case Chained(inner):
                costs = self.learned.costs.capped(SEED_WEIGHT) if self.learned else policy.costs
                return Chained(self.seeded(inner, told), costs.informed(told))
            case Marginal():
                known = self.estimates.weakened() if self.estimates else policy.learned
                return policy.informed(known.informed(told))
            case Fallback(inner):
                plain = self.plain.scaled(SEED_WEIGHT)
                return policy._replace(inner=self.seeded(inner, told), plain=plain)
        if not isinstance(policy, Learner):
            return policy
        learned = self.learned.weakened() if self.learned else policy.learned
        return policy.informed(learned.informed(told))

    def joined(self, policy: Policy) -> Experience:
        """Updated by a session that ends with this policy."""
        match policy:
            case Chained(inner):
                return self.joined(inner)
            case Marginal(learned=newer):
                known = self.estimates
                return replace(self, estimates=known.joined(newer) if known else newer)
            case Fallback(inner):
                plain = policy.plain if policy.plain.rounds else self.plain
                return replace(self.joined(inner), plain=plain)
        if not isinstance(policy, Learner) or not policy.learned.costs.known:
            return self
        learned = self.learned.joined(policy.learned) if self.learned else policy.learned
        return replace(self, learned=learned)
