"""Which workers there are, and which of them this orchestrator is connected to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.workers.peers import Peers
from orchestrator.workers.pool import WorkerPool
from orchestrator.workers.subset import Member, subset
from services.contract.errors import StoreError
from services.contract.types import PROTOCOL, Role
from services.runtime.outage import Outage
from services.runtime.registry import RegisteredWorker, WorkerRegistry

log = logging.getLogger(__name__)

DISCOVER_EVERY = 0.5
"""Seconds."""
PAUSE_FOR_EACH = 2e-3
"""Seconds of rest after a list, for each worker in it: it costs every reader its whole length."""


@dataclass(frozen=True, slots=True)
class Subsetting:
    """`me` is connected to `size` workers of each role, beside those of the settings."""

    me: Member
    size: int
    peers: Peers


async def discover(
    pool: WorkerPool,
    registry: WorkerRegistry,
    fixed: Mapping[Role, Collection[str]],
    away: Outage,
    subsetting: Subsetting | None = None,
) -> None:
    """Keep the pool's addresses equal to `fixed` and the registry's, until cancelled.

    Of those in the registry it takes the ones that speak the protocol of this version.
    While the registry is away links go on without it.
    """
    workers: Sequence[RegisteredWorker] = ()
    peers: Sequence[Member] = ()
    speakers = Speakers()
    while True:
        pause = DISCOVER_EVERY
        try:
            listed = await registry.news()
            others = await subsetting.peers.news() if subsetting is not None else None
            away.end()
        except StoreError:
            # The writer reports an absent Redis.
            listed = others = None
            away.begin()
        if listed is not None:
            workers, pause = speakers.among(listed), max(pause, PAUSE_FOR_EACH * len(listed))
        if others is not None:
            peers = others
        if listed is not None or others is not None:
            for role in fixed:
                tell(pool, role, fixed[role], workers, subsetting, peers)
        await asyncio.sleep(pause)


class Speakers:
    """Workers that speak our protocol; the others are told of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def among(self, listed: Sequence[RegisteredWorker]) -> Sequence[RegisteredWorker]:
        """Those of a list."""
        known = [one for one in listed if self._speaks(one)]
        others = {one.address: one for one in listed if not self._speaks(one)}
        for address in others.keys() - self._told:
            worker = others[address].description
            log.warning(
                "%s %s at %s is for orchestrators of another protocol: it speaks %d to %d, and "
                "this one %d",
                worker.role.value,
                worker.worker_id,
                address,
                worker.protocol_min,
                worker.protocol_max,
                PROTOCOL,
            )
        self._told = set(others)
        return known

    def _speaks(self, one: RegisteredWorker) -> bool:
        worker = one.description
        return worker.protocol_min <= PROTOCOL <= worker.protocol_max


def tell(
    pool: WorkerPool,
    role: Role,
    fixed: Collection[str],
    listed: Sequence[RegisteredWorker],
    subsetting: Subsetting | None,
    peers: Collection[Member],
) -> None:
    """Tell the pool the addresses of a role: those to connect to, and those beyond."""
    found = {one.address: one for one in listed if one.description.role is role}
    near = set(found)
    if subsetting is not None:
        members = [Member(address, one.zone) for address, one in found.items()]
        near = subset(subsetting.me, peers, members, subsetting.size)
    beyond = {
        one.description.worker_id: address
        for address, one in found.items()
        if address not in near and address not in fixed
    }
    pool.set_addresses(role, {*fixed, *near}, beyond)
