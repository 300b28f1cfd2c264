"""The real scripts on a real Redis, and how busy each shard of a cluster would be.

One local server runs every call, in the order they come; its keys are the served ones. Which
shard a call would go to follows from its slot; that shard serves its calls one after another,
`call_us` each, and the caller waits for it in virtual time.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis
from redis import exceptions
from redis.crc import key_slot

from orchestrator.store.command import Call, pack
from orchestrator.store.delivery import ClusterServers
from orchestrator.store.scripts import NAMES, script
from research.size.virtual_loop import context_of

SLOTS = 16384


TURN_S = 1e-3
"""A round trip to Redis, and for how long pipelines gather."""


@dataclass(slots=True)
class Traffic:
    """What went over the wire."""

    calls: Counter[str] = field(default_factory=Counter)
    """By script."""
    shards: Counter[int] = field(default_factory=Counter)
    """Calls by shard."""
    slots: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    answered: int = 0
    """Bytes."""
    longest_wait: float = 0.0
    """Seconds that a pipeline waited for its shard, its own calls included."""


@dataclass(frozen=True, slots=True)
class _Pipeline:
    commands: list[bytes]
    answer: asyncio.Future[list[Any]]


class Server:
    """A synchronous connection: virtual time stands still while it is used."""

    def __init__(self, path: str) -> None:
        """`path`: the server's socket."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader(replyError=_error)

    def run(self, commands: Sequence[bytes]) -> tuple[list[Any], int]:
        """The replies, and their bytes."""
        self._socket.sendall(b"".join(commands))
        replies: list[Any] = []
        size = 0
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is not False:
                replies.append(reply)
                continue
            data = self._socket.recv(1 << 20)
            if not data:
                raise exceptions.ConnectionError("the local Redis is gone")
            size += len(data)
            self._reader.feed(data)
        return replies, size

    def busy_s(self) -> float:
        """CPU seconds of the server until now."""
        text = self.run([pack("INFO", "cpu")])[0][0].decode()
        told = dict(line.split(":") for line in text.splitlines() if ":" in line)
        return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Shards:
    """A cluster's shards as virtual queues before one real server.

    Pipelines that arrive within one `TURN_S` reach the server together: changing between
    two processes for each of them would take most of the time.
    """

    def __init__(self, server: Server, count: int, call_us: float) -> None:
        """`call_us`: what a shard takes for a call."""
        self.server, self.count = server, count
        self.traffic = Traffic()
        self._call_s = 1e-6 * call_us
        self._busy_until = [0.0] * count
        self._waiting: list[_Pipeline] = []
        self._context = context_of("redis")
        for name in NAMES:
            server.run([pack("SCRIPT", "LOAD", script(name).source)])

    def of(self, key: str) -> int:
        """The shard of a key."""
        return int(key_slot(key.encode())) * self.count // SLOTS

    async def run(self, calls: Sequence[tuple[str, str, bytes]]) -> list[Any]:
        """The replies to a pipeline to one shard: (what it is, key, command) of each call."""
        loop, traffic = asyncio.get_running_loop(), self.traffic
        traffic.calls.update(name for name, _, _ in calls)
        traffic.slots.update(key_slot(key.encode()) for _, key, _ in calls)
        shard, now = self.of(calls[0][1]), loop.time()
        traffic.shards[shard] += len(calls)
        answer: asyncio.Future[list[Any]] = loop.create_future()
        if not self._waiting:
            loop.call_later(TURN_S, self._turn, context=self._context)
        self._waiting.append(_Pipeline([command for _, _, command in calls], answer))
        replies = await answer
        start = max(now, self._busy_until[shard])
        done = self._busy_until[shard] = start + self._call_s * len(calls)
        traffic.longest_wait = max(traffic.longest_wait, done - now)
        await asyncio.sleep(max(0.0, done - loop.time()))
        return replies

    def _turn(self) -> None:
        waiting, self._waiting = self._waiting, []
        commands = [command for one in waiting for command in one.commands]
        replies, size = self.server.run(commands)
        self.traffic.sent += sum(map(len, commands))
        self.traffic.answered += size
        for one in waiting:
            count = len(one.commands)
            if not one.answer.done():
                one.answer.set_result(replies[:count])
            replies = replies[count:]


@dataclass(frozen=True, slots=True)
class _Node:
    name: str


class _Nodes:
    """What a session store asks of a client of a cluster."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._nodes = [_Node(f"shard-{number}") for number in range(shards.count)]
        self.nodes_manager = self
        self.nodes_cache = {node.name: node for node in self._nodes}

    def primary(self, key: str) -> _Node:
        """The node that serves a key."""
        return self._nodes[self._shards.of(key)]


class SimulatedServers(ClusterServers):
    """The shards, as a session store sends to them."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.client: Any = _Nodes(shards)

    @property
    def losses(self) -> int:
        """None."""
        return 0

    async def execute(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to those of the first calls that go to one shard."""
        shard, count = self._shards.of(calls[0].keys[0]), 1
        while count < len(calls) and self._shards.of(calls[count].keys[0]) == shard:
            count += 1
        taken = calls[:count]
        return await self._shards.run([(one.script, one.keys[0], one.packed()) for one in taken])

    async def load_scripts(self) -> None:
        """They are loaded."""

    async def probe(self, call: Call) -> Any:
        """The reply to one call."""
        return (await self.execute([call]))[0]

    def probes(self, tag: str) -> list[str]:  # noqa: ARG002
        """One will do: there is one server."""
        return ["probe"]


class SimulatedClient:
    """As much of redis-py's client as the registry uses."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def evalsha(self, sha: str, count: int, *more: Any) -> Any:
        """Run a script by its digest. Raises NoScriptError."""
        return await self._eval(b"EVALSHA", sha, count, *more)

    async def eval(self, source: str, count: int, *more: Any) -> Any:
        """Run a script by its source."""
        return await self._eval(b"EVAL", source, count, *more)

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _eval(self, command: bytes, source: str, count: int, *more: Any) -> Any:
        name = "heartbeat" if len(more) > count + 1 else "list"
        packed = pack(command, source, count, *more)
        [reply] = await self._shards.run([(name, more[0], packed)])
        if isinstance(reply, Exception):
            raise reply
        return reply


def _error(text: str) -> exceptions.ResponseError:
    if text.startswith("NOSCRIPT"):
        return exceptions.NoScriptError(text)
    return exceptions.ResponseError(text)
