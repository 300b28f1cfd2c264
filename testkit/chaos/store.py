"""Where a cluster keeps its sessions: one Redis-compatible server, or masters with replicas."""

import asyncio
import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from redis import exceptions
from redis.crc import key_slot

from orchestrator.session.ports import SessionKey
from orchestrator.store.codec import keys_of
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.redis_client import DEFAULT_PREFIX
from testkit.chaos.proxy import Network
from testkit.redis_servers import (
    RedisCluster,
    Server,
    Watched,
    folder_of_servers,
    form_cluster,
    form_watch,
    until,
)  # fmt: skip

TENANT = "default"
ONE, CLUSTER, SENTINEL = TOPOLOGIES = ("one", "cluster", "sentinel")
"""One server; three masters with a replica each; a master and a replica that sentinels watch."""


class Store(ABC):
    """What the processes of a cluster keep their sessions in."""

    role = name = "redis"

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the processes of the cluster connect."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id of a server that is alone; 0 where there is none."""

    @abstractmethod
    def _clients(self) -> Iterator[Any]:
        """A client of each server that takes writes."""

    @abstractmethod
    def heal(self) -> None:
        """Make the wire to it a good one again, if it has one."""

    @abstractmethod
    def stop(self) -> None:
        """End it for good."""

    def sessions(self) -> dict[str, str]:
        """The status of every stored session, by (tenant, session) as the key has it."""
        return self._field("status")

    def owned_by(self, owner: str, sessions: Iterable[str]) -> set[str]:
        """Those of these sessions (of the default tenant) that this orchestrator owns."""
        owners = self._field("owner")
        keys = {one: keys_of(DEFAULT_PREFIX, SessionKey(TENANT, one))[0] for one in sessions}
        return {one for one, key in keys.items() if owners.get(key) == owner}

    def _field(self, name: str) -> dict[str, str]:
        """One field of every session's record, by its key."""
        found: dict[str, str] = {}
        for client in self._clients():
            keys = list(client.scan_iter(f"{DEFAULT_PREFIX}*:meta", count=1000))
            batch = client.pipeline(transaction=False)
            for key in keys:
                batch.hget(key, name)
            found |= {_text(k): _text(v) for k, v in zip(keys, batch.execute(), strict=True)}
        return found


class OneServer(Store):
    """A real server that keeps what it acknowledged over a restart; it never ends by itself."""

    def __init__(self, network: Network) -> None:
        self._server = EmbeddedRedis(append_only=True)
        self._server.start()
        self._socket = self._server.url.removeprefix("unix://")
        self.proxy = network.proxy(lambda: f"unix:{self._socket}")

    @property
    def url(self) -> str:
        """Where the processes of the cluster connect."""
        return f"redis://{self.proxy.address}"

    @property
    def pid(self) -> int:
        """The server's process id; 0 while there is none."""
        return self._server.pid or 0

    def restart(self) -> None:
        """SIGTERM, and start it again with what it wrote down."""
        self._server.restart()

    def crash(self) -> None:
        """SIGKILL, and start it again with what it wrote down."""
        self.send(signal.SIGKILL)
        self._server.restart()

    def lose(self) -> None:
        """SIGKILL, and a start without the data, as of a server whose disk is gone."""
        self.send(signal.SIGKILL)
        self._server.end_process()
        shutil.rmtree(Path(self._socket).parent / "appendonlydir")
        self._server.start()

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        if (pid := self._server.pid) is not None:
            os.kill(pid, number)

    @contextmanager
    def full(self) -> Iterator[None]:
        """No memory is left for writes meanwhile."""
        self._allow(1)
        try:
            yield
        finally:
            self._allow(0)

    def _allow(self, most_bytes: int) -> None:
        for client in self._clients():
            client.config_set("maxmemory", most_bytes)

    def heal(self) -> None:
        """Make the wire to it a good one again."""
        self.proxy.heal()

    def stop(self) -> None:
        """End it for good."""
        self.send(signal.SIGCONT)
        self._server.stop()

    def _clients(self) -> Iterator[Any]:
        with redis.Redis(unix_socket_path=self._socket, socket_timeout=10) as client:
            yield client


class ReplicatedStore(Store):
    """Masters with a replica each, whose failovers are real ones.

    `program`: the server to run; None = what `paceline up` would. Make it where no event loop
    runs.
    """

    def __init__(self, topology: str, program: Path | None = None) -> None:
        with ExitStack() as stack:
            _, start = stack.enter_context(folder_of_servers(program))
            self._made = asyncio.run(_formed(topology, start))
            self._stack = stack.pop_all()
        self._count = len(self._made.replicas)

    @property
    def url(self) -> str:
        """Where the processes of the cluster connect."""
        return self._made.url if isinstance(self._made, RedisCluster) else self._made.url()

    @property
    def pid(self) -> int:
        """No server is alone here."""
        return 0

    def heal(self) -> None:
        """Nothing lies between."""

    def stop(self) -> None:
        """End every server."""
        self._stack.close()

    async def pairs(self) -> list[tuple[Server, Server]]:
        """Each master and its replica, which has all that the master has."""
        masters = {one.port: one for one in self._servers if await _role(one) == "master"}
        found = []
        for one in self._servers:
            told = await _replication(one)
            if told.get("master_link_status") == "up" and int(told["master_port"]) in masters:
                found.append((masters[int(told["master_port"])], one))
        return found

    async def settled(self) -> None:
        """Wait until each master has its replica. Raises TimeoutError."""

        async def whole() -> bool:
            return len(await self.pairs()) == self._count

        await until(whole, "a master of the store has no replica")
        if isinstance(self._made, RedisCluster):
            await self._made.agree(2 * self._count)

    async def taken_over(self, by: Server) -> None:
        """Wait until this one is a master. Raises TimeoutError."""

        async def leads() -> bool:
            return await _role(by) == "master"

        await until(leads, "no replica took over")

    async def hand_over(self, to: Server) -> None:
        """Have this replica take its master's place, in agreement with it."""
        if isinstance(self._made, RedisCluster):
            await to.ask("CLUSTER", "FAILOVER")
        else:
            await self._made.sentinels[0].ask("SENTINEL", "FAILOVER", "pace")
        await self.taken_over(to)

    async def sessions_of(self, master: Server, sessions: Iterable[str]) -> set[str]:
        """Those of these sessions (of the default tenant) whose keys this master has."""
        if not isinstance(self._made, RedisCluster):
            return set(sessions)
        slots = await master.ask("CLUSTER", "SLOTS")
        held = [range(s[0], s[1] + 1) for s in slots if int(s[2][1]) == master.port]
        return {one for one in sessions if any(_slot(one) in some for some in held)}

    @property
    def _servers(self) -> list[Server]:
        own = self._made
        first = own.masters if isinstance(own, RedisCluster) else [own.master]
        return [*first, *own.replicas]

    def _clients(self) -> Iterator[Any]:
        for one in self._servers:
            away = suppress(exceptions.ConnectionError, exceptions.TimeoutError)
            with redis.Redis(port=one.port, socket_timeout=1) as client, away:
                if client.info("replication")["role"] == "master":
                    yield client


@contextmanager
def cut_off(replica: Server) -> Iterator[None]:
    """The replica's link to its master is gone, and does not come back; all others stay."""
    client: Any = redis.Redis(port=replica.port, socket_timeout=5)
    try:
        # A master without passwords refuses one.
        client.config_set("masterauth", "refused")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
        yield
    finally:
        client.config_set("masterauth", "")
        client.close()


async def _formed(topology: str, start: Callable[..., Server]) -> RedisCluster | Watched:
    kept = ("appendonly yes", "appendfsync everysec")
    if topology == CLUSTER:
        made = await form_cluster(start, *kept, replicas=True)
        # Its nodes agree on who has which slot before anybody asks.
        await made.agree(len(made.masters) + len(made.replicas))
        return made
    return await form_watch(start, *kept)


async def _role(server: Server) -> str:
    return str((await _replication(server)).get("role", ""))


async def _replication(server: Server) -> dict[str, Any]:
    """What a server says of it; nothing where it does not answer."""
    try:
        told: dict[str, Any] = await server.ask("INFO", "replication")
    except (exceptions.ConnectionError, exceptions.TimeoutError):
        return {}
    return told


def _slot(session: str) -> int:
    return int(key_slot(keys_of(DEFAULT_PREFIX, SessionKey(TENANT, session))[0].encode()))


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
