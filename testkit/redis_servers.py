"""Redis-compatible servers on ports of loopback: alone, as a cluster, watched by sentinels."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from services.runtime.embedded_redis import find_server, tied
from services.runtime.ports import free_port

SLOTS = 16_384
NODE_TIMEOUT_MS = 1000
_SECONDS, _STEP_SECONDS = 60.0, 0.01


async def until(condition: Callable[[], Awaitable[bool]], problem: str) -> None:
    """Wait for a condition. Raises TimeoutError that names the problem."""
    deadline = time.monotonic() + _SECONDS
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        await asyncio.sleep(_STEP_SECONDS)


@dataclass
class Server:
    """One process, which ends with the thread that started it.

    `told`: its configuration, a line each.
    """

    program: Path
    folder: Path
    told: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    sentinel: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it may be asked at once, and answers when it is ready."""
        config = self.folder / f"{self.port}.conf"
        data = self.folder / str(self.port)
        data.mkdir(exist_ok=True)
        port = "tls-port" if self.options.get("ssl") else "port"
        lines = [
            "port 0",
            f"{port} {self.port}",
            "bind 127.0.0.1",
            f"dir {data}",
            'save ""',
            *self.told,
        ]
        if self.sentinel:
            lines.remove('save ""')
        if not config.exists():
            config.write_text("\n".join(lines) + "\n")
        log = (self.folder / f"{self.port}.log").open("ab")
        command = [*tied(self.program, f"redis-{self.port}"), str(config)]
        command += ["--sentinel"] if self.sentinel else []
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a machine dies."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    async def ask(self, *command: str | bytes | int) -> Any:
        """What it says to one command."""
        client: Any = Redis(
            port=self.port, socket_timeout=5, decode_responses=True, protocol=2, **self.options
        )
        try:
            return await client.execute_command(*command)
        finally:
            await client.aclose()

    async def ready(self) -> None:
        """Wait until it answers."""

        async def answers() -> bool:
            try:
                return bool(await self.ask("PING"))
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                return False

        await until(answers, f"no answer at {self.port}")


@contextmanager
def folder_of_servers(
    program: Path | None = None,
) -> Iterator[tuple[Path, Callable[..., Server]]]:
    """A folder, and how to start servers in it; all end with it.

    `program`: what runs; None = what `paceline up` would run.
    """
    program, made = program or find_server(), list[Server]()

    def start(*told: str, program: Path = program, **more: Any) -> Server:
        server = Server(program, folder, told, **more)
        made.append(server)
        server.start()
        return server

    with TemporaryDirectory(prefix="paceline-servers-") as name:
        folder = Path(name)
        try:
            yield folder, start
        finally:
            for server in made:
                if server.process is not None and server.process.poll() is None:
                    server.kill()


@dataclass
class RedisCluster:
    """Masters, and one replica of each if there are any."""

    masters: list[Server]
    replicas: list[Server]
    start: Callable[..., Server]

    @property
    def url(self) -> str:
        """Where clients find it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.masters)

    async def owner(self, slot: int) -> Server:
        """Who serves a slot, as the first that answers says."""
        for one in (*self.masters, *self.replicas):
            try:
                slots = await one.ask("CLUSTER", "SLOTS")
            except exceptions.RedisError:
                continue
            port = next(int(s[2][1]) for s in slots if s[0] <= slot <= s[1])
            return next(o for o in (*self.masters, *self.replicas) if o.port == port)
        raise AssertionError("no node answers")

    async def move(self, slot: int, target: Server, *, pause: float = 0.0) -> None:
        """What `redis-cli --cluster reshard` does with one slot, one key at a time."""
        source = await self.owner(slot)
        ids = {one.port: await one.ask("CLUSTER", "MYID") for one in (source, target)}
        await target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        await source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        await asyncio.sleep(pause)
        while keys := await source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1):
            await source.ask("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            await asyncio.sleep(pause)
        for one in (target, source, *self.masters):
            with suppress(exceptions.RedisError):
                await one.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])

    async def agree(self, masters: int) -> None:
        """Wait until everybody knows everybody and all slots are served."""

        async def agreed() -> bool:
            for one in (*self.masters, *self.replicas):
                told = await one.ask("CLUSTER", "INFO")
                info = dict(line.split(":", 1) for line in told.split())
                known = int(info["cluster_known_nodes"])
                if info["cluster_state"] != "ok" or known < masters:
                    return False
            return True

        await until(agreed, "the nodes of the cluster do not agree")


async def form_cluster(
    start: Callable[..., Server], *told: str, replicas: bool = False, spare: bool = False
) -> RedisCluster:
    """Three masters that share the slots, each with a replica if asked.

    `spare`: a fourth without slots. `told`: further configuration of each.
    """

    def node() -> Server:
        return start(
            "cluster-enabled yes",
            f"cluster-port {free_port()}",
            f"cluster-node-timeout {NODE_TIMEOUT_MS}",
            "cluster-require-full-coverage no",
            "cluster-allow-replica-migration no",
            "repl-diskless-sync-delay 0",
            *told,
        )

    made = RedisCluster([node() for _ in range(4 if spare else 3)], [], start)
    if replicas:
        made.replicas = [node() for _ in range(3)]
    everybody = (*made.masters, *made.replicas)
    await asyncio.gather(*(one.ready() for one in everybody))
    await _join(made, everybody)
    return made


async def _join(made: RedisCluster, everybody: Sequence[Server]) -> None:
    first, third = everybody[0], SLOTS // 3 + 1
    for number, one in enumerate(made.masters[:3]):
        last = min(SLOTS, (number + 1) * third) - 1
        await one.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        await one.ask("CLUSTER", "ADDSLOTSRANGE", number * third, last)
    for one in everybody[1:]:
        bus = next(line.split()[1] for line in one.told if line.startswith("cluster-port"))
        await first.ask("CLUSTER", "MEET", "127.0.0.1", one.port, bus)
    await made.agree(len(everybody))
    for replica, master in zip(made.replicas, made.masters, strict=False):
        await replica.ask("CLUSTER", "REPLICATE", await master.ask("CLUSTER", "MYID"))
    for replica in made.replicas:
        await linked(replica)


async def linked(replica: Server) -> None:
    """Wait until it has all that its master has."""

    async def up() -> bool:
        told = await replica.ask("INFO", "replication")
        return bool(told.get("master_link_status") == "up")

    await until(up, f"{replica.port} has not all of its master")


@dataclass
class Watched:
    """A master, its replicas and three sentinels, at the start."""

    master: Server
    replicas: list[Server]
    sentinels: list[Server]

    def url(self, service: str = "pace", login: str = "", options: str = "") -> str:
        """Where clients find the master of a service."""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/{service}{options}"

    @property
    def replica(self) -> Server:
        """The first one."""
        return self.replicas[0]


async def form_watch(
    start: Callable[..., Server], *told: str, replicas: int = 1, sentinels_told: Sequence[str] = ()
) -> Watched:
    """A master, its replicas and three sentinels.

    `told`: further configuration, which may name a password.
    """
    master = start("repl-diskless-sync-delay 0", *told)
    await master.ready()
    copies = []
    for _ in range(replicas):
        copies.append(
            start("repl-diskless-sync-delay 0", f"replicaof 127.0.0.1 {master.port}", *told)
        )
        await copies[-1].ready()
        await linked(copies[-1])
    lines = [
        f"sentinel monitor pace 127.0.0.1 {master.port} 2",
        "sentinel down-after-milliseconds pace 1000",
        "sentinel failover-timeout pace 4000",
    ]
    sentinels = [start(*lines, *sentinels_told, sentinel=True) for _ in range(3)]
    made = Watched(master, copies, sentinels)
    await asyncio.gather(*(one.ready() for one in sentinels))
    await _met(made)
    return made


async def _met(made: Watched) -> None:
    async def all_know() -> bool:
        for one in made.sentinels:
            flat = await one.ask("SENTINEL", "MASTER", "pace")
            told = dict(zip(flat[::2], flat[1::2], strict=True))
            if int(told["num-other-sentinels"]) < 2 or int(told["num-slaves"]) < len(made.replicas):
                return False
        return True

    await until(all_know, "the sentinels do not know each other")
