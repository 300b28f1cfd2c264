"""A soak: thousands of short generations, and what every process holds before and after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from paceline import Client, PacelineError

from testkit.chaos.health import left_behind
from testkit.chaos.site import Cluster
from testkit.chaos.transcript import Case

WARM_UP = 0.2
MOST_GROWTH = 0.05
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds: resident bytes, open connections, file descriptors, threads."""

    memory: int
    sockets: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Holding:
        """Of a process that runs."""
        process = psutil.Process(pid)
        every = process.net_connections("all")
        sockets = sum(one.status == psutil.CONN_ESTABLISHED for one in every)
        return cls(process.memory_info().rss, sockets, process.num_fds(), process.num_threads())


@dataclass(frozen=True, slots=True)
class Growth:
    """One process after the warm-up, and at the end."""

    name: str
    before: Holding
    after: Holding

    @property
    def share(self) -> float:
        """By how much its memory grew."""
        return self.after.memory / self.before.memory - 1

    def complaints(self) -> list[str]:
        """What it kept that it should not have."""
        found = []
        if self.share >= MOST_GROWTH:
            found.append(f"{self.name}: memory grew by {self.share:.1%}")
        if self.after.sockets > self.before.sockets:
            found.append(f"{self.name}: {self.before.sockets} sockets, then {self.after.sockets}")
        return found


@dataclass(frozen=True, slots=True)
class Soaked:
    """A whole soak. `violations`: each one line."""

    generations: int
    seconds: float
    growths: tuple[Growth, ...]
    violations: tuple[str, ...]


async def soak(cluster: Cluster, cases: Sequence[Case], count: int, at_once: int) -> Soaked:
    """So many generations; memory is read after the first fifth and at the end, at rest."""
    began = time.monotonic()
    warm = max(1, int(WARM_UP * count))
    violations: list[str] = []
    async with cluster.client() as one, cluster.client(first=1) as other:
        clients = (one, other)
        violations += await _generate(clients, cases, range(warm), at_once)
        await left_behind(cluster)
        before = await _holdings(cluster)
        violations += await _generate(clients, cases, range(warm, count), at_once)
        violations += await left_behind(cluster)
        after = await _holdings(cluster)
    growths = tuple(Growth(name, before[name], after[name]) for name in before)
    violations += [line for growth in growths for line in growth.complaints()]
    return Soaked(count, time.monotonic() - began, growths, tuple(violations))


async def _generate(
    clients: Sequence[Client], cases: Sequence[Case], numbers: range, at_once: int
) -> list[str]:
    """Ask for generations, `at_once` at a time; what went wrong."""
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> str:
        case = cases[number % len(cases)]
        async with places:
            try:
                await clients[number % len(clients)].generate(case.prompt, **case.options)
            except PacelineError as error:
                return f"generation {number}: {type(error).__name__}: {error}"
        return ""

    return [line for line in await asyncio.gather(*map(one, numbers)) if line]


async def _holdings(cluster: Cluster) -> dict[str, Holding]:
    """Of every process, the store included, once what is idle has settled."""
    await asyncio.sleep(_SETTLE_SECONDS)
    pids = {member.name: member.pid for member in cluster.members}
    pids[cluster.store.name] = cluster.store.pid
    return {name: Holding.of(pid) for name, pid in pids.items()}
