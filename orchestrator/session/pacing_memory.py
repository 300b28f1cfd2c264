"""What the sessions of this process learned of drafts, kept for those to come.

Two things of different owners. What rounds *cost* (the step by its rows, the way, the time of
a draft, the pace of plain decoding) is this process's and its workers': every session starts
from it. How often drafts *hit* follows from texts: only the sessions of one scope (a tenant)
start from that, and one without a scope (an ephemeral session) neither gets nor leaves it. So
whoever sends texts that defeat drafts slows down nobody else's.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from orchestrator.core.pacing import Experience, Marginal, Policy
from orchestrator.core.state import SessionConfig, State
from services.contract.types import VerifyMode

# The drafting method, how its drafts are verified, and whether they are trees: requests
# can name no others than those served, so there are only a few.
Kind = tuple[str, VerifyMode, bool]

MOST_KNOWN = 4096
"""Scopes and kinds whose hits are remembered, ~1 KB each; the one used longest ago goes first."""
SPREAD = 0.25
"""Standard deviation of a session's pace about that of all with its method, a share of it."""
LARGEST_STEP = 1.0
"""A session much further off says that something else was in its way."""
FEWEST = 16
"""Tokens after the first of a session that tells how fast one is."""
KEPT = 0.99
"""Weight that is left to what is known after one session more, of any method."""
LEAST = 0.5
"""Sessions that a method counts for that was not used for long."""


class PacingMemory:
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


class Pace(NamedTuple):
    """How fast sessions decoded with one method: the mean logarithm of tokens a millisecond.

    `sessions`: how many they were; those of long ago count for less.
    """

    sessions: float = 0.0
    log: float = 0.0

    def add(self, log: float) -> Pace:
        """With one more; none alone tells much."""
        if self.sessions:
            log = min(max(log, self.log - LARGEST_STEP), self.log + LARGEST_STEP)
        sessions = self.sessions + 1.0
        return Pace(sessions, self.log + (log - self.log) / sessions)

    def drawn(self, source: Random) -> float:
        """One that is possible by what was seen (Thompson sampling)."""
        return source.gauss(self.log, SPREAD / math.sqrt(self.sessions))


class Paces:
    """Which of several methods sessions draft by, where nobody says: what is fast for them.

    A method more brings tokens and takes time: a draft model shares memory, and some cores, with
    the verifier. So it is measured, of whole sessions, each tenant's apart: texts that defeat
    one method move nobody else's choice. Every session draws its method by how likely that is to
    be the fastest; one that nobody has tried yet comes first, in the order given.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, VerifyMode], dict[str, Pace]] = OrderedDict()

    def choose(self, tenant: str, mode: VerifyMode, methods: Sequence[str], draw: str) -> str:
        """One of `methods`; `draw` is what the choice hangs on beside what is known."""
        known = self._known.get((tenant, mode), {})
        for method in methods:
            if method not in known or len(methods) == 1:
                return method
        source = Random(f"method/{draw}")
        drawn = {method: known[method].drawn(source) for method in methods}
        return max(methods, key=drawn.__getitem__)

    def remember(self, tenant: str, state: State) -> None:
        """Take in how fast a session was that ends here."""
        policy, config = state.policy, state.config
        if not isinstance(policy, Marginal) or policy.tokens < FEWEST or policy.ms <= 0.0:
            return
        known = self._known.setdefault((tenant, config.mode), {})
        self._known.move_to_end((tenant, config.mode))
        for method, pace in known.items():
            known[method] = pace._replace(sessions=max(LEAST, KEPT * pace.sessions))
        pace = known.get(config.method, Pace())
        known[config.method] = pace.add(math.log(policy.tokens / policy.ms))
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
