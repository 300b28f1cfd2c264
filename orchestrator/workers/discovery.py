"""Which workers there are: those of the settings, and those in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from orchestrator.store.outage import Outage
from orchestrator.workers.pool import WorkerPool
from services.contract.errors import StoreError
from services.contract.types import Role
from services.runtime.registry import WorkerRegistry

DISCOVER_EVERY = 0.5
"""Seconds."""


async def discover(
    pool: WorkerPool,
    registry: WorkerRegistry,
    fixed: Mapping[Role, Collection[str]],
    away: Outage,
) -> None:
    """Keep the pool's addresses equal to `fixed` and the registry, until cancelled.

    While the registry is away links go on without it.
    """
    while True:
        try:
            listed = await registry.list()
            away.end()
        except StoreError:
            # The writer reports an absent Redis.
            listed = None
            away.begin()
        for role, addresses in fixed.items():
            if listed is not None:
                found = {w.address for w in listed if w.description.role is role}
                pool.set_addresses(role, {*addresses, *found})
        await asyncio.sleep(DISCOVER_EVERY)
