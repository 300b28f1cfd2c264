"""Links to workers beyond an orchestrator's subset: where a session needs one, and no longer. Pure.

A session needs one where no worker of the subset can take it, or where it goes on after another
orchestrator's death and its verifier still has its text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from orchestrator.workers.subset import order_of
from services.contract.types import Role

AT_ONCE = 2
"""Workers that are tried together, if all of a subset are full."""
AGAIN_AFTER = 0.25
"""Seconds between such tries."""
HOME_WAIT = 1.0
"""Seconds that a session waits for the link to the verifier it had."""
STAY = 10.0
"""Seconds for which a link without a session is kept."""


class Link(Protocol):
    """As much of a link as is asked."""

    role: Role
    address: str
    assigned: set[int]


class Visits:
    """Which workers there are beyond the subset, and when each was last needed."""

    def __init__(self, orchestrator: str) -> None:
        """`orchestrator`: whose; each tries the others in an order of its own."""
        self._own = orchestrator
        # By role: worker ids and their addresses.
        self._beyond: dict[Role, dict[str, str]] = {role: {} for role in Role}
        self._addresses: dict[Role, frozenset[str]] = {role: frozenset() for role in Role}
        self._needed: dict[tuple[Role, str], float] = {}
        self._tried: dict[Role, float] = {}

    def know(self, role: Role, beyond: Mapping[str, str]) -> None:
        """The ids and addresses of the workers of a role beyond the subset."""
        self._beyond[role] = dict(beyond)
        self._addresses[role] = frozenset(beyond.values())

    def away(self, role: Role, address: str) -> bool:
        """Whether a link to this address is a visit."""
        return address in self._addresses[role]

    def address_of(self, role: Role, worker: str) -> str:
        """Where a worker beyond the subset listens; '' = it is not one."""
        return self._beyond[role].get(worker, "")

    def more(self, role: Role, linked: Collection[str], now: float) -> list[str]:
        """Addresses to connect to, since all that are linked are full; none right after others."""
        if now - self._tried.get(role, now - AGAIN_AFTER) < AGAIN_AFTER:
            return []
        self._tried[role] = now
        free = self._addresses[role].difference(linked)
        return sorted(free, key=lambda address: order_of(f"{self._own}/{address}"))[:AT_ONCE]

    def waits(self, role: Role, address: str, now: float) -> bool:
        """Whether a session may wait for a link to its verifier there, which it needs now."""
        return now - self._needed.setdefault((role, address), now) < HOME_WAIT

    def keep(self, link: Link, now: float) -> bool:
        """Whether a visit goes on: it has a session, or had one lately."""
        place = link.role, link.address
        if link.assigned:
            self._needed[place] = now
        if now - self._needed.setdefault(place, now) < STAY:
            return True
        del self._needed[place]
        return False
