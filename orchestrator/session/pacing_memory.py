"""What the sessions of this process learned about drafts, kept for later sessions.

Costs and hits have different owners. The *costs* of rounds (step time by rows, round trip,
drafting time, speed of plain decoding) belong to this process and its workers: every session
starts from them. *Hits* depend on texts: only sessions of one scope (a tenant) share them; one
without a scope (an ephemeral session) neither gets nor leaves them. So texts that defeat drafts
slow down no other tenant. Verifiers tell the first of them what steps take.
"""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.core.pacing import Experience, Policy, make_policy, told_by
from orchestrator.core.rounds import new_session
from orchestrator.core.state import State
from orchestrator.session.offered_model import OfferedModel
from orchestrator.session.options import Options
from orchestrator.steering.config import SMALL_TREE, SessionConfig
from services.contract.types import StepTime, VerifyMode

# The drafting method, the rule, and whether drafts are trees. Requests can only name
# methods that are served, so there are few kinds.
Kind = tuple[str, VerifyMode, bool]

MOST_KNOWN = 4096
"""Scopes and kinds whose hits are kept, ~1 KB each; the least recently used goes first."""


class PacingMemory:
    """The costs of each kind of drafts, and its hits in each scope."""

    def __init__(self) -> None:
        self._costs: dict[Kind, Experience] = {}
        self._hits: OrderedDict[tuple[str, Kind], Experience] = OrderedDict()

    def seeded(
        self, config: SessionConfig, policy: Policy, told: tuple[StepTime, ...] = ()
    ) -> Policy:
        """The policy of a new session, with what earlier sessions learned.

        `told`: what steps took that verifiers measured before they served.
        """
        return self._of(config).seeded(policy, told_by(told))

    def remember(self, state: State) -> None:
        """Keep what an ended session learned."""
        config, kind = state.config, _kind(state.config)
        if not config.method:
            return
        known = self._of(config).joined(state.policy)
        self._costs[kind] = known.without_hits()
        if config.phrase_scope:
            self._hits[config.phrase_scope, kind] = known
            self._hits.move_to_end((config.phrase_scope, kind))
            if len(self._hits) > MOST_KNOWN:
                self._hits.popitem(last=False)

    def _of(self, config: SessionConfig) -> Experience:
        """This scope's hits, at the newest costs."""
        kind = _kind(config)
        costs = self._costs.get(kind, Experience())
        hits = self._hits.get((config.phrase_scope, kind)) if config.phrase_scope else None
        return costs if hits is None else hits.at_costs_of(costs)


def _kind(config: SessionConfig) -> Kind:
    return config.method, config.mode, config.num_candidates > 1


class Policies:
    """First states of sessions that ask for rounds, each with what earlier ones learned."""

    def __init__(self, offer: OfferedModel, options: Options) -> None:
        self._offer, self._options = offer, options
        self._memory = PacingMemory()

    def state(self, config: SessionConfig, committed: tuple[int, ...]) -> State:
        """The first state of a session."""
        return new_session(config, self.policy(config), committed)

    def learn(self, state: State) -> None:
        """Keep what an ended session learned."""
        self._memory.remember(state)

    def policy(self, config: SessionConfig) -> Policy:
        """The session's first pacing policy."""
        policy = make_policy(
            self._options.pacing,
            config.window,
            fallback=self._options.fallback,
            exact=config.mode.exact_match,
            trees=config.num_candidates > 1,
            most_nodes=SMALL_TREE if config.estimated else 0,
            chained=config.limits.max_in_flight > 1,
            seed=config.seed,
        )
        return self._memory.seeded(config, policy, self._offer.step_times())
