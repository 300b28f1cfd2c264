"""Whose turn it is among sessions that wait: by priority, with age, within one tenant.

A tenant keeps the places that its sessions would have without priorities; which of them takes
which place, their ranks decide. Who is overtaken gets the later place in exchange. So a priority
gains nothing over other tenants, now or later.

    rank = since when it waits + what a step of priority is worth * priority,   the lowest first

Waiting counts as priority does: a session is overtaken by those alone that begin to wait less
than that worth, times the difference of their priorities, after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol, TypeVar

MOST = 100
"""Priorities are from -MOST to MOST."""
SECONDS = 0.25
"""Of waiting, that a step of priority is worth."""
STEPS = 0.1
"""Of an engine since a session's last block, that a step of priority is worth."""


class Waiting(Protocol):
    """Who waits."""

    @property
    def priority(self) -> int:
        """The lower, the sooner."""


T = TypeVar("T", bound=Waiting)


class Claim(NamedTuple):
    """Who waits: whose session it is, its priority, since when, and what priority is worth."""

    tenant: Hashable
    priority: int
    since: float
    worth: float = SECONDS

    @property
    def rank(self) -> float:
        """The lowest goes first."""
        return self.since + self.worth * self.priority


def in_turn(waiting: Sequence[T], claim: Callable[[T], Claim]) -> list[T]:
    """`waiting`, which is in the order without priorities, with each tenant's own in theirs."""
    if not any(one.priority for one in waiting):
        return list(waiting)
    claims = [claim(one) for one in waiting]
    own: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, who in enumerate(claims):
        own[who.tenant].append(place)
    taken = {tenant: iter(sorted(own[tenant], key=lambda i: claims[i].rank)) for tenant in own}
    return [waiting[next(taken[who.tenant])] for who in claims]


def exchange(waiting: Sequence[T], claim: Callable[[T], Claim], place: str) -> list[T]:
    """The same, and for good: `place` is the attribute by which `waiting` is in order.

    Whoever is served then takes its place away with it, and not that of one that still waits.
    """
    if not any(one.priority for one in waiting):
        return list(waiting)
    ordered, places = in_turn(waiting, claim), [getattr(one, place) for one in waiting]
    for one, taken in zip(ordered, places, strict=True):
        setattr(one, place, taken)
    return ordered
