"""What the sessions of this process learned of drafts, kept for those to come.

Two things of different owners. What rounds *cost* (the step by its rows, the way, the time of
a draft, the pace of plain decoding) is this process's and its workers': every session starts
from it. How often drafts *hit* follows from texts: only the sessions of one scope (a tenant)
start from that, and one without a scope (an ephemeral session) neither gets nor leaves it. So
whoever sends texts that defeat drafts slows down nobody else's.
"""

from __future__ import annotations

from collections import OrderedDict

from orchestrator.core.pacing import Experience, Policy
from orchestrator.core.state import SessionConfig, State
from services.common.types import VerifyMode

# The drafting method, how its drafts are verified, and whether they are trees: requests
# can name no others than those served, so there are only a few.
Kind = tuple[str, VerifyMode, bool]

MOST_KNOWN = 4096
"""Scopes and kinds whose hits are remembered, ~1 KB each; the one used longest ago goes first."""


class Experiences:
    """The costs of each kind of drafts, and its hits in each scope."""

    def __init__(self) -> None:
        self._costs: dict[Kind, Experience] = {}
        self._hits: OrderedDict[tuple[str, Kind], Experience] = OrderedDict()

    def seeded(self, config: SessionConfig, policy: Policy) -> Policy:
        """The policy of a new session, with what those before it learned."""
        return self._of(config).seeded(policy)

    def remember(self, state: State) -> None:
        """Take in what a session learned that ends here."""
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
