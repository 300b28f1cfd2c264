"""Which drafting method a session gets that names none: one that is fast for its tenant."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from services.contract.types import VerifyMode

MOST_KNOWN = 4096
"""Tenants and rules whose paces are kept; the least recently used goes first."""
SPREAD = 0.25
"""Standard deviation of a session's speed around its method's mean, as a share of it."""
LARGEST_STEP = 1.0
"""Outliers beyond so much are clipped: something else slowed that session down."""
FEWEST = 16
"""A session's speed counts from so many tokens on."""
KEPT = 0.99
"""Discount of earlier observations, per session of any method."""
LEAST = 0.5
"""Least weight, in sessions, of a method that was not used for long."""


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

    def remember(self, tenant: str, mode: VerifyMode, method: str, tokens: int, ms: float) -> None:
        """An ended session brought so many tokens, in so much time of its rounds."""
        if tokens < FEWEST or ms <= 0.0:
            return
        known = self._known.setdefault((tenant, mode), {})
        self._known.move_to_end((tenant, mode))
        for other, pace in known.items():
            known[other] = pace._replace(sessions=max(LEAST, KEPT * pace.sessions))
        known[method] = known.get(method, Pace()).add(math.log(tokens / ms))
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
