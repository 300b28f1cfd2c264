"""What the sessions of this process learned about drafts, kept for later sessions.

Costs and hits have different owners. The *costs* of rounds (step time by rows, round trip,
drafting time, speed of plain decoding) belong to this process and its workers: every session
starts from them. *Hits* depend on texts: only sessions of one scope (a tenant) share them; one
without a scope (an ephemeral session) neither gets nor leaves them. So texts that defeat drafts
slow down no other tenant. Verifiers tell the first of them what steps take.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from orchestrator.core.pacing import Experience, Marginal, Policy, told_by
from orchestrator.core.state import State
from orchestrator.steering.config import SessionConfig
from services.contract.types import StepTime, VerifyMode

# The drafting method, the rule, and whether drafts are trees. Requests can only name
# methods that are served, so there are few kinds.
Kind = tuple[str, VerifyMode, bool]

MOST_KNOWN = 4096
"""Scopes and kinds whose hits are kept, ~1 KB each; the least recently used goes first."""
SPREAD = 0.25
"""Standard deviation of a session's speed around its method's mean, as a share of it."""
LARGEST_STEP = 1.0
"""Outliers beyond so much are clipped: something else slowed that session down."""
FEWEST = 16
"""A session's speed counts from so many tokens after the first."""
KEPT = 0.99
"""Discount of earlier observations, per session of any method."""
LEAST = 0.5
"""Least weight, in sessions, of a method that was not used for long."""


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


class Pace(NamedTuple):
    """How fast sessions decoded with one method: the mean logarithm of tokens a millisecond.

    `sessions`: their number, discounted by age.
    """

    sessions: float = 0.0
    log: float = 0.0

    def add(self, log: float) -> Pace:
        """With one more session, of limited influence."""
        if self.sessions:
            log = min(max(log, self.log - LARGEST_STEP), self.log + LARGEST_STEP)
        sessions = self.sessions + 1.0
        return Pace(sessions, self.log + (log - self.log) / sessions)

    def drawn(self, source: Random) -> float:
        """A draw from its posterior (Thompson sampling)."""
        return source.gauss(self.log, SPREAD / math.sqrt(self.sessions))


class Paces:
    """Chooses a drafting method for sessions that name none: the one that is fast for them.

    Another method brings tokens and takes time: a draft model shares memory, and some cores, with
    the verifier. So the speed of whole sessions is measured, for each tenant apart: texts that
    defeat one method do not change other tenants' choice. A session draws its method by the
    probability that it is the fastest; untried ones come first, in the order given.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, VerifyMode], dict[str, Pace]] = OrderedDict()

    def choose(self, tenant: str, mode: VerifyMode, methods: Sequence[str], draw: str) -> str:
        """One of `methods`, by what is known and the random number `draw`."""
        known = self._known.get((tenant, mode), {})
        for method in methods:
            if method not in known or len(methods) == 1:
                return method
        source = Random(f"method/{draw}")
        drawn = {method: known[method].drawn(source) for method in methods}
        return max(methods, key=drawn.__getitem__)

    def remember(self, tenant: str, state: State) -> None:
        """Keep the speed of an ended session."""
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
