"""How script calls reach the servers that have their sessions, one pipeline at a time.

A reply is an acknowledgement only once as many replicas as asked for have all that the
server had by then: behind the calls goes a write of the same connection, and WAIT for it. A
repeated call may change nothing, so without that write WAIT would have nothing to wait for.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode
from redis.cluster import get_node_name
from redis.crc import key_slot

from orchestrator.store.command import Call, pack, tells_loss
from orchestrator.store.scripts import NAMES, script
from orchestrator.store.server_identity import ServerIdentity
from services.runtime.redis_client import FAULTS, Client, TooFewReplicas
from services.runtime.redis_cluster import RedisCluster

SLOWEST_BYTES = 1 << 20
"""Bytes that a wire carries in a second at least: what is longer may take longer."""
REPLICA_WAIT_MS = 1000
"""For how long one pipeline waits for replicas; less than a connection may be silent."""
_FENCE_MS = 1000
_ASKING = pack("ASKING")


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """`max_bytes` of a pipeline, each way, but for a call that alone has more.

    `replicas`: to wait for. `losses`: whether to ask of whom is met what it may have lost.
    """

    max_bytes: int = 4 * 1024 * 1024
    replicas: int = 0
    losses: bool = True


class OneServer:
    """One server, or the master that sentinels name."""

    def __init__(self, client: Redis, options: DeliveryOptions) -> None:
        self._client, self._options = client, options
        self._identity = ServerIdentity()

    @property
    def losses(self) -> int:
        """How often a server has shown that it may have lost acknowledged writes."""
        return self._identity.losses

    async def execute(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to as many of the first calls as go into one pipeline."""
        pool: Any = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            return await exchange(connection, self._identity, calls, self._options)
        finally:
            await pool.release(connection)

    async def recover(self, call: Call, fault: Exception) -> None:  # noqa: ARG002
        """Make the next attempt at this call likelier to work. May raise what redis-py raises."""
        if isinstance(fault, exceptions.NoScriptError):
            await self.load_scripts()
        elif not isinstance(fault, TooFewReplicas):
            # After a failover the old connections may lead to a replica.
            await self._client.connection_pool.disconnect(inuse_connections=False)

    async def load_scripts(self) -> None:
        """Teach every server every script. Raises what redis-py raises."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for name in NAMES:
                pipeline.script_load(script(name).source)
            await pipeline.execute()

    async def probe(self, call: Call) -> Any:
        """The reply to one call that stands for all, from one connection."""
        return (await self.execute([call]))[0]

    def probes(self, tag: str) -> list[str]:  # noqa: ARG002
        """Names of sessions, one for each server; `tag` is a hash tag with `%s` for the name."""
        return [secrets.token_hex(8)]


class ClusterServers:
    """The nodes of a cluster. A pipeline goes to one of them."""

    def __init__(self, client: RedisCluster, options: DeliveryOptions) -> None:
        self.client, self._options = client, options
        self._identities: dict[str, ServerIdentity] = {}
        self._served: dict[int, str] = {}
        self._asked: dict[int, str] = {}
        self._moves = 0

    @property
    def losses(self) -> int:
        """See `OneServer.losses`. A slot that another node serves now may have been lost, too."""
        return self._moves + sum(one.losses for one in self._identities.values())

    async def execute(self, calls: Sequence[Call]) -> list[Any]:
        """See `OneServer.execute`: those of the first calls that one node serves."""
        if not self.client.nodes_manager.slots_cache:
            await self.client.refresh()
        slot = slot_of(calls[0])
        name = self._asked.pop(slot, None)
        if name and (node := self.client.get_node(node_name=name)):
            # It serves the slot only by halves; one call at a time keeps the order.
            return await self._exchange(node, calls[:1], asking=True)
        node = self.client.primary(calls[0].keys[0])
        count = 1
        while count < len(calls) and self._together(node, calls[count]):
            count += 1
        for call in calls[:count]:
            self._note(slot_of(call), node.name)
        return await self._exchange(node, calls[:count])

    async def recover(self, call: Call, fault: Exception) -> None:
        """See `OneServer.recover`."""
        manager = self.client.nodes_manager
        if isinstance(fault, exceptions.MovedError) and fault.slot_id in manager.slots_cache:
            await manager.move_slot(fault)
        elif type(fault) is exceptions.AskError:
            self._asked[slot_of(call)] = get_node_name(fault.host, fault.port)
        elif isinstance(fault, exceptions.NoScriptError):
            await _load(self.client.primary(call.keys[0]))
        elif not isinstance(fault, TooFewReplicas | exceptions.TryAgainError):
            await self.client.refresh()

    async def load_scripts(self) -> None:
        """See `OneServer.load_scripts`."""
        await self.client.refresh()
        await asyncio.gather(*(_load(node) for node in self.client.primaries()))

    async def probe(self, call: Call) -> Any:
        """See `OneServer.probe`."""
        try:
            return (await self._exchange(self.client.primary(call.keys[0]), [call]))[0]
        except FAULTS:
            with suppress(*FAULTS):
                await self.client.refresh()
            raise

    def probes(self, tag: str) -> list[str]:
        """See `OneServer.probes`."""
        left, names = {node.name for node in self.client.primaries()}, list[str]()
        for _ in range(100 * len(left)):
            name = secrets.token_hex(8)
            node = self.client.nodes_manager.slots_cache.get(key_slot((tag % name).encode()))
            if node and node[0].name in left:
                left.remove(node[0].name)
                names.append(name)
            if not left:
                break
        return names

    def _together(self, node: ClusterNode, call: Call) -> bool:
        nodes = self.client.nodes_manager.slots_cache.get(slot_of(call))
        return nodes is not None and nodes[0] is node and slot_of(call) not in self._asked

    def _note(self, slot: int, name: str) -> None:
        if self._served.setdefault(slot, name) != name:
            self._served[slot] = name
            self._moves += 1

    async def _exchange(
        self, node: ClusterNode, calls: Sequence[Call], *, asking: bool = False
    ) -> list[Any]:
        identity = self._identities.setdefault(node.name, ServerIdentity())
        connection: Any = node.acquire_connection()
        try:
            return await exchange(connection, identity, calls, self._options, asking=asking)
        finally:
            node.release(connection)


Servers = OneServer | ClusterServers
"""What a writer sends by."""


def servers(client: Client, options: DeliveryOptions) -> Servers:
    """What fits the client."""
    if isinstance(client, RedisCluster):
        return ClusterServers(client, options)
    return OneServer(client, options)


def slot_of(call: Call) -> int:
    """The slot of its session."""
    return int(key_slot(call.keys[0].encode()))


async def exchange(
    connection: Any,
    identity: ServerIdentity,
    calls: Sequence[Call],
    options: DeliveryOptions,
    *,
    asking: bool = False,
) -> list[Any]:
    """Send as many of the first calls as one pipeline takes; their replies."""
    # What redis-py's own pipeline does, at a third of its cost per call.
    pipeline = pipeline_of(calls, options.max_bytes)
    before, each = (_ASKING, 2) if asking else (b"", 1)
    fence = _fence(calls[0], options.replicas, before) if options.replicas else []
    try:
        # Each step has its own limit: a server may be far, and a new connection asks it often.
        await connection.connect()
        if options.losses:
            await identity.meet(connection)
        sent = b"".join([*(before + packed for packed in pipeline), *fence])
        async with asyncio.timeout(connection.socket_timeout + len(sent) / SLOWEST_BYTES):
            await connection.send_packed_command(sent)
        expected = sum(call.expects for call in calls[: len(pipeline)])
        replies = (await _replies(connection, each * len(pipeline), expected))[each - 1 :: each]
        if fence:
            _check_copies(await _replies(connection, each + 1), options.replicas)
        if options.losses and any(map(tells_loss, replies)):
            # A failover need not break the connection.
            await identity.ask(connection)
        return replies
    except TooFewReplicas:
        raise
    except BaseException:
        # A reply that comes late must never be taken for that of a later call.
        await connection.disconnect(nowait=True)
        raise


def pipeline_of(calls: Sequence[Call], max_bytes: int) -> list[bytes]:
    """As many of the first calls as fit, at least one."""
    room, pipeline = max_bytes, list[bytes]()
    for call in calls:
        packed = call.packed()
        room -= len(packed) + call.expects
        if room < 0 and pipeline:
            break
        pipeline.append(packed)
    return pipeline


def _fence(call: Call, replicas: int, before: bytes) -> list[bytes]:
    """A write in the slot of the call, and a wait for its copies."""
    key = call.keys[0].removesuffix("meta") + "copied"
    return [
        before + pack("SET", key, "", "PX", _FENCE_MS),
        pack("WAIT", replicas, REPLICA_WAIT_MS),
    ]


def _check_copies(replies: list[Any], wanted: int) -> None:
    """Raise unless the write was made and copied."""
    written, copies = replies[-2:]
    if isinstance(written, Exception):
        raise written
    if isinstance(copies, exceptions.ResponseError) and _final(copies):
        raise copies
    if not isinstance(copies, int):
        # It became a replica meanwhile.
        raise TooFewReplicas(f"a write could not be copied to {wanted}")
    if copies < wanted:
        raise TooFewReplicas(f"{copies} of {wanted} have a write")


def _final(error: exceptions.ResponseError) -> bool:
    return isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error)


async def _replies(connection: Any, count: int, size: int = 0) -> list[Any]:
    """The next replies, of about `size` bytes, in the time of one step."""
    async with asyncio.timeout(connection.socket_timeout + size / SLOWEST_BYTES):
        return [await _reply(connection) for _ in range(count)]


async def _reply(connection: Any) -> Any:
    """The next reply; a refusal is one, too."""
    try:
        return await connection.read_response(timeout=math.inf)
    except exceptions.ResponseError as error:
        return error


async def _load(node: ClusterNode) -> None:
    for name in NAMES:
        await node.execute_command("SCRIPT LOAD", script(name).source)
