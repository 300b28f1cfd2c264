"""redis-py's client of a cluster, which also finds the cluster again when all its nodes moved."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio.cluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import PRIMARY
from redis.crc import key_slot

_RETRIES = 2


class RedisCluster(redis.asyncio.cluster.RedisCluster):
    """Serves what slots are served, also where others are not."""

    _given: dict[str, ClusterNode]

    @classmethod
    def at(cls, hosts: Sequence[tuple[str, int]], **options: Any) -> RedisCluster:
        """By any of these nodes; it connects at first use."""
        made = cls(
            startup_nodes=[ClusterNode(host, port) for host, port in hosts],
            require_full_coverage=False,
            # Else a cluster whose addresses all change could not be found by its names again.
            dynamic_startup_nodes=False,
            retry=Retry(NoBackoff(), _RETRIES),
            **options,
        )
        made._given = dict(made.nodes_manager.startup_nodes)
        return made

    def connect_by(self, kind: Any) -> None:
        """Make connections of this class."""
        self.connection_kwargs["connection_class"] = kind
        for node in self._given.values():
            node.connection_class = kind

    async def initialize(self, *args: Any, **kwargs: Any) -> RedisCluster:
        """Ask who serves which slots, if that is not known."""
        manager = self.nodes_manager
        manager.startup_nodes = {**self._given, **manager.nodes_cache}
        await super().initialize(*args, **kwargs)
        return self

    async def refresh(self) -> None:
        """Ask who serves which slots. Raises what redis-py raises."""
        manager = self.nodes_manager
        manager.startup_nodes = {**self._given, **manager.nodes_cache}
        await manager.initialize()

    async def aclose(self) -> None:
        """Close every connection."""
        await super().aclose()
        for nodes in (self._given, self.nodes_manager.nodes_cache):
            await asyncio.gather(*(node.disconnect() for node in nodes.values()))

    def get_node(
        self, host: str | None = None, port: int | None = None, node_name: str | None = None
    ) -> ClusterNode | None:
        """A node that is known, and by name any: ASK names one before it serves a slot.

        redis-py follows ASK by name, and fails with AttributeError where that node is new to it.
        """
        known = super().get_node(host, port, node_name)
        if known is not None or node_name is None:
            return known
        place, _, number = node_name.rpartition(":")
        manager = self.nodes_manager
        made = ClusterNode(place, int(number), PRIMARY, **manager.connection_kwargs)
        return manager.nodes_cache.setdefault(made.name, made)

    def primary(self, key: str) -> ClusterNode:
        """Who serves the slot of a key, as far as is known. Raises SlotNotCoveredError."""
        return self.nodes_manager.get_node_from_slot(key_slot(key.encode()))

    def primaries(self) -> Iterable[ClusterNode]:
        """Who serves slots."""
        return {
            nodes[0].name: nodes[0] for nodes in self.nodes_manager.slots_cache.values()
        }.values()
