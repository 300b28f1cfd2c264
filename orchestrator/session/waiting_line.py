"""Sessions that wait for a verifier, and which of them let another one of their tenant go first.

Each asks again and again, and whoever asks when there is room takes it. A session that asks
while one of its tenant with a sooner priority ranks before it (`services.scheduling.turns`) leaves
its turn to that one: so a tenant's sessions are served in their order, and a tenant as often as
without priorities. Sessions of equal priority do not wait for each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

from services.scheduling.turns import Claim


class WaitingLine:
    """The sessions of one orchestrator that have no verifier."""

    def __init__(self, wake: Callable[[str], object] = lambda _: None) -> None:
        """`wake` makes a session ask now."""
        self._wake = wake
        self._places: dict[str, Claim] = {}
        # Of each tenant and priority, oldest first; some have left.
        self._levels: defaultdict[str, dict[int, list[tuple[float, str]]]] = defaultdict(dict)

    def enter(self, tenant: str, session: str, priority: int, since: float) -> Claim:
        """It waits since then. May be repeated."""
        claim = Claim(tenant, priority, since)
        if self._places.get(session) != claim:
            self._places[session] = claim
            level = self._levels[tenant].setdefault(priority, [])
            heapq.heappush(level, (since, session))
        return claim

    def takes_its_turn(self, tenant: str, session: str, priority: int, since: float) -> bool:
        """Whether a session that waits since then may ask; else another one is woken."""
        claim = self.enter(tenant, session, priority, since)
        sooner = [level for level in self._levels[tenant] if level < priority]
        firsts = [self._first(tenant, level) for level in sooner]
        first = min((one for one in firsts if one is not None), default=None)
        if first is None or first[0] >= claim.rank:
            return True
        self._wake(first[1])
        return False

    def leave(self, session: str) -> None:
        """It has a verifier, or has ended. May be repeated."""
        place = self._places.pop(session, None)
        if place is not None:
            self._first(str(place.tenant), place.priority)

    def _first(self, tenant: str, priority: int) -> tuple[float, str] | None:
        """Rank and name of the session of a level that waits longest; None: none is left."""
        levels = self._levels[tenant]
        level = levels.get(priority, [])
        while level and self._places.get(level[0][1]) != Claim(tenant, priority, level[0][0]):
            heapq.heappop(level)
        if not level:
            levels.pop(priority, None)
            if not levels:
                del self._levels[tenant]
            return None
        since, session = level[0]
        return Claim(tenant, priority, since).rank, session
