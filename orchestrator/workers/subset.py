"""Which workers an orchestrator is connected to, of many: deterministic subsetting. Pure.

Every orchestrator to every worker is N x M streams, each with a heartbeat four times a second. So
each orchestrator takes a part of the workers, such that all parts together cover each worker
about equally often, and little changes when somebody comes or goes (Beyer et al., Site
Reliability Engineering, 2016, chapter 20, has the aim; the ring of ranks is that of Finagle's
deterministic aperture):

1. Workers stand on a ring in the order of the digests of their names, so do orchestrators. The
   i-th of K orchestrators takes the workers from the (i N / K)-th of N on. It takes as many as were
   asked for, or more where the parts of all would leave workers out.
2. Orchestrators prefer workers of their own zone. Where that has too few, they take the rest from
   the other zones in the same way.
3. Zones do not count where they are lopsided: where one has workers and no orchestrator, or less
   than half as many workers for each orchestrator as there are overall. Callers come to all
   orchestrators alike, so one zone's workers would stand idle while another's are full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import NamedTuple

LOPSIDED = 0.5


class Member(NamedTuple):
    """An orchestrator or a worker: its name, and its zone; '' = not known."""

    name: str
    zone: str = ""


def subset(
    me: Member, orchestrators: Collection[Member], workers: Collection[Member], size: int
) -> set[str]:
    """The names of the workers that `me` takes: `size` of them, or all if there are fewer.

    `orchestrators`: those that live; `me` counts whether it is among them or not.
    """
    if len(workers) <= size:
        return {worker.name for worker in workers}
    everybody = {*orchestrators, me}
    if not _balanced(everybody, workers):
        return set(_part(me, everybody, workers, size))
    mates = [one for one in everybody if one.zone == me.zone]
    near = [worker for worker in workers if worker.zone == me.zone]
    taken = set(_part(me, mates, near, size))
    if len(taken) < size:
        far = [worker for worker in workers if worker.zone != me.zone]
        taken.update(_part(me, everybody, far, size - len(taken)))
    return taken


def _balanced(orchestrators: Collection[Member], workers: Collection[Member]) -> bool:
    """Whether each zone has about its share of both."""
    callers = Counter(one.zone for one in orchestrators)
    called = Counter(worker.zone for worker in workers)
    overall = len(workers) / len(orchestrators)
    return called.keys() <= callers.keys() and all(
        called[zone] >= LOPSIDED * overall * count for zone, count in callers.items()
    )


def _part(
    me: Member, orchestrators: Collection[Member], workers: Collection[Member], size: int
) -> Sequence[str]:
    """A stretch of the ring of workers, by the rank of `me`."""
    ring, ranks = _ring(workers), _ring(orchestrators)
    if not ring:
        return []
    width = min(len(ring), max(size, -(-len(ring) // len(ranks))))
    start = ranks.index(me.name) * len(ring) // len(ranks)
    return (ring + ring)[start : start + width]


def _ring(members: Collection[Member]) -> list[str]:
    return sorted({one.name for one in members}, key=order_of)


def order_of(name: str) -> bytes:
    """A place that has nothing to do with the name's own order."""
    return blake2b(name.encode(), digest_size=8).digest()
