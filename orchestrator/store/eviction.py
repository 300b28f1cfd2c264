"""Whether the server may throw keys away to make room: no session may be kept on such a one."""

from __future__ import annotations

import logging
from contextlib import suppress

from redis.asyncio import Redis

from services.runtime.redis_client import FAULTS

log = logging.getLogger(__name__)

_NONE = "noeviction"


async def warn_of_eviction(client: Redis) -> None:
    """Say in the log if sessions may be evicted, or if that cannot be told."""
    policy = await _policy(client)
    if not policy:
        log.warning(
            "session store: its maxmemory-policy could not be checked (INFO and CONFIG GET are "
            "refused); it must be noeviction, or sessions are lost when memory runs out"
        )
    elif policy != _NONE:
        log.warning(
            "session store: its maxmemory-policy is %s: when memory runs out it throws sessions "
            "away; set it to noeviction",
            policy,
        )


async def _policy(client: Redis) -> str:
    """Empty where nobody says. Managed servers often know no CONFIG."""
    with suppress(*FAULTS):
        if policy := (await client.info("memory")).get("maxmemory_policy", ""):
            return str(policy)
    with suppress(*FAULTS):
        return str((await client.config_get("maxmemory-policy")).get("maxmemory-policy", ""))
    return ""
