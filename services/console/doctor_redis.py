"""What `paceline doctor --redis` says: which servers there are, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from orchestrator.store import connect
from services.runtime.redis_client import FAULTS, Client, open_client, start_error
from services.runtime.redis_cluster import RedisCluster


def describe(url: str) -> Sequence[str]:
    """A line for each server that takes writes. Raises StartError where Paceline cannot use it."""
    return asyncio.run(_describe(url))


async def _describe(url: str) -> list[str]:
    # All that an orchestrator checks at its start.
    await (await connect(url)).close()
    client = open_client(url)
    try:
        return [_line(name, told) for name, told in (await _told(client)).items()]
    except FAULTS as error:
        raise start_error(url, error) from error
    finally:
        await client.aclose()


async def _told(client: Client) -> dict[str, dict[str, Any]]:
    if not isinstance(client, RedisCluster):
        return {"": await client.info()}
    await client.initialize()
    return {node.name: await client.info(target_nodes=node) for node in client.primaries()}


def _line(name: str, told: dict[str, Any]) -> str:
    kind, version = told.get("server_name", "redis"), told.get("redis_version", "?")
    replicas = int(told.get("connected_slaves", 0))
    policy = str(told.get("maxmemory_policy", "noeviction"))
    parts = [
        f"{kind} {told.get('valkey_version', version)}",
        f"{replicas} replica{'s' * (replicas != 1)}",
        "append-only file"
        if told.get("aof_enabled")
        else "no append-only file: a restart forgets sessions that nobody works on",
        policy if policy == "noeviction" else f"{policy}: it may throw sessions away",
    ]
    return " ".join(filter(None, (name, ", ".join(parts))))
