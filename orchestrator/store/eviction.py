"""Whether the server may throw keys away to make room: no session may be kept on such a one."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from services.runtime.redis_client import FAULTS, Client
from services.runtime.redis_cluster import RedisCluster

log = logging.getLogger(__name__)

_NONE = "noeviction"


async def warn_of_eviction(client: Client) -> None:
    """Say in the log if sessions may be evicted, or if that cannot be told."""
    policies = await _policies(client)
    if not all(policies):
        log.warning(
            "session store: its maxmemory-policy could not be checked (INFO and CONFIG GET are "
            "refused); it must be noeviction, or sessions are lost when memory runs out"
        )
    for policy in sorted(set(policies) - {_NONE, ""}):
        log.warning(
            "session store: its maxmemory-policy is %s: when memory runs out it throws sessions "
            "away; set it to noeviction",
            policy,
        )


async def _policies(client: Client) -> list[str]:
    """That of each server; empty where it does not say. Managed ones often know no CONFIG."""
    if isinstance(client, RedisCluster):
        return [await _policy(client, target_nodes=node) for node in client.primaries()]
    return [await _policy(client)]


async def _policy(client: Any, **target: Any) -> str:
    with suppress(*FAULTS):
        if policy := (await client.info("memory", **target)).get("maxmemory_policy", ""):
            return str(policy)
    with suppress(*FAULTS):
        told = await client.config_get("maxmemory-policy", **target)
        return str(told.get("maxmemory-policy", ""))
    return ""
