"""What is read of every process while it is attacked: memory, how late its loop is, its end."""

import asyncio
import math
import urllib.request
from collections import Counter
from dataclasses import dataclass

import psutil
from prometheus_client.parser import text_string_to_metric_families

from testkit.chaos.site import Cluster

LAG_FAMILY = "paceline_event_loop_lag_seconds"
EVERY_SECONDS = 0.25
_ANSWER_SECONDS = 20.0

Buckets = Counter[float]
"""Measurements so far by upper bound (s), each in its own bucket alone."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One process over one time: bytes at its beginning, most since; p99 of its lag (s).

    `family`: the most of it and its children together, who compile and have bounds of their own.
    """

    name: str
    before: int
    most: int
    family: int
    lag_p99: float

    @property
    def growth(self) -> float:
        """Most memory over that before."""
        return self.most / self.before


class Watch:
    """Of every process of a cluster, for as long as it runs as a task."""

    def __init__(self, cluster: Cluster) -> None:
        self._members = {member.name: member for member in cluster.members}
        self._pids = {name: member.pid for name, member in self._members.items()}
        self._pids[cluster.store.name] = cluster.store.pid
        self._before = {name: _memory(pid)[0] for name, pid in self._pids.items()}
        self._most = dict(self._before)
        self._families = dict(self._before)
        self._lags: dict[str, Buckets] = {}

    async def begin(self) -> None:
        """Remember how late every loop was until now."""
        self._lags = await self._read_lags()

    async def run(self) -> None:
        """Look at the memory, until cancelled."""
        while True:
            for name, pid in self._pids.items():
                own, family = _memory(pid)
                self._most[name] = max(self._most[name], own)
                self._families[name] = max(self._families[name], family)
            await asyncio.sleep(EVERY_SECONDS)

    async def end(self) -> list[Reading]:
        """What was seen since `begin`."""
        lags = await self._read_lags()
        return [
            Reading(
                name,
                before,
                self._most[name],
                self._families[name],
                _p99(lags[name] - self._lags[name]) if name in lags else 0.0,
            )
            for name, before in self._before.items()
        ]

    def restarted(self) -> list[str]:
        """Processes that are not the ones they were."""
        return [
            name
            for name, member in self._members.items()
            if not member.alive or member.pid != self._pids[name]
        ]

    async def _read_lags(self) -> dict[str, Buckets]:
        found = {}
        for name, member in self._members.items():
            found[name] = await asyncio.to_thread(_buckets, member.metrics)
        return found


def _memory(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and with all below it; 0 once it is gone."""
    try:
        process = psutil.Process(pid)
        below = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return 0, 0
    own = _resident(process)
    return own, own + sum(_resident(one) for one in below)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _buckets(metrics: str) -> Buckets:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=_ANSWER_SECONDS) as reply:
        page = reply.read().decode()
    below = 0.0
    found: Buckets = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"{LAG_FAMILY}_bucket":
                found[float(sample.labels["le"])] = round(sample.value - below)
                below = sample.value
    return found


def _p99(buckets: Buckets) -> float:
    """The smallest bound that 99 of 100 measurements are under; 0 of none."""
    total, under = buckets.total(), 0
    for bound in sorted(buckets):
        under += buckets[bound]
        if under >= 0.99 * total:
            return bound
    return 0.0 if not total else math.inf
