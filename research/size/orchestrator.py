"""One orchestrator of many: what its process makes at start, without ports."""

import asyncio
from functools import partial
from typing import Any

from orchestrator.frontdoor.inference import Inference
from orchestrator.options import Options
from orchestrator.recorder import Recorder
from orchestrator.store import Outage, RedisSessionStore, StoreOptions
from orchestrator.workers.discovery import Subsetting, discover
from orchestrator.workers.peers import Peer, Peers
from orchestrator.workers.pool import WorkerPool
from orchestrator.workers.subset import Member
from research.size.redis_shards import Shards, SimulatedClient, SimulatedServers
from research.size.virtual_loop import context_of
from research.size.workers import SimulatedLink, Worker
from services.contract.types import Role
from services.runtime.registry import WorkerRegistry
from services.runtime.telemetry import Telemetry

FOREVER_S = 1e6
"""Entries in the registry must outlive the simulation, whose seconds take longer."""


class Broken(Exception):
    """The connection of a call broke."""


class Orchestrator:
    """It has callers from `ready` until `kill`."""

    def __init__(
        self,
        name: str,
        workers: dict[str, Worker],
        shards: Shards,
        telemetry: Telemetry,
        hop_ms: float,
        subset: int,
        zone: str,
        **options: Any,
    ) -> None:
        """`options`: of `Options`."""
        self.name = name
        self._me, self._subset = Member(name, zone), subset
        self.context = context_of(name)
        self.open: set[asyncio.Future[None]] = set()
        self.alive = True
        self._loop = asyncio.get_running_loop()
        self._shards, self._telemetry, self._options = shards, telemetry, options
        make_link = partial(SimulatedLink, workers, self.context, hop_ms)
        self.pool = WorkerPool(name, clock=self._loop.time, make_link=make_link)
        self.inference: Inference | None = None

    async def start(self) -> None:
        """Connect to Redis and to the workers in its registry."""
        client: Any = SimulatedClient(self._shards)
        self.store = RedisSessionStore(client, StoreOptions(), servers=self._servers())
        await self.store.start()
        self.pool.start()
        registry = WorkerRegistry("", client=client)
        fixed: dict[Role, tuple[str, ...]] = {Role.VERIFIER: (), Role.DRAFTER: ()}
        self._finding = asyncio.create_task(
            discover(self.pool, registry, fixed, Outage(), await self._subsetting(client))
        )
        target = await self.pool.ready(60.0)
        await self.pool.settle(60.0)
        recorder = Recorder(self._telemetry, clock=self._loop.time)
        options = Options(self.name, **self._options)
        self.inference = Inference(
            self.pool, target, self.store, recorder, options, clock=self._loop.time
        )
        self.pool.attach(self.inference)

    async def _subsetting(self, client: Any) -> Subsetting | None:
        if not self._subset:
            return None
        await Peer("", self._me, client=client, ttl_s=FOREVER_S).start()
        return Subsetting(self._me, self._subset, Peers("", client=client))

    def kill(self, dead: set[str]) -> None:
        """The process is gone: nothing of it runs again, its links and its callers' calls break."""
        dead.add(self.name)
        self.alive = False
        for link in self.pool.links():
            if link.up:
                link._call.cancel()
        for call in list(self.open):
            call.set_exception(Broken)
        self.open.clear()

    def _servers(self) -> SimulatedServers:
        return SimulatedServers(self._shards)
