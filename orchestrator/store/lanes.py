"""The writers of a cluster, one for each node that serves slots.

A node that is away holds up its own sessions alone. The calls of one session stay in
order: while any of its slot is under way, the next goes the same way, wherever the slot is by
then; each writer finds the node of a call anew at each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from redis import exceptions

from orchestrator.store.command import Call
from orchestrator.store.delivery import ClusterServers, Servers, slot_of
from orchestrator.store.under_way import UnderWay
from orchestrator.store.writer import Writer, WriterOptions


class Lanes:
    """Use from one event loop, between `start` and `close`; as `Writer` is used."""

    def __init__(
        self,
        servers: ClusterServers,
        options: WriterOptions,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        self.servers = servers
        self.options = options
        self.on_fenced, self.under_way = on_fenced, UnderWay()
        self._lanes: dict[str, Writer] = {}
        self._busy: dict[int, tuple[Writer, int]] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._closing = True

    def start(self) -> None:
        """Start sending."""
        self._closing = False

    @property
    def away_s(self) -> float:
        """For how long the node that is away longest has not taken what waits for it."""
        return max((lane.away_s for lane in list(self._lanes.values())), default=0.0)

    def send(self, call: Call) -> asyncio.Future[Any]:
        """Queue a call; its place in the order of its session is taken now."""
        slot = slot_of(call)
        lane, count = self._busy.get(slot) or (self._lane(call), 0)
        self._busy[slot] = lane, count + 1
        return lane.send(call._replace(on_settled=partial(self._settled, slot, call.on_settled)))

    async def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for at most `timeout` seconds, then fail the rest."""
        self._closing = True
        lanes = list(self._lanes.values())
        await asyncio.gather(*(lane.close(timeout) for lane in lanes), *self._retired)

    def _settled(self, slot: int, others: Callable[[], None] | None) -> None:
        if others is not None:
            others()
        lane, count = self._busy.pop(slot)
        if count > 1:
            self._busy[slot] = lane, count - 1

    def _lane(self, call: Call) -> Writer:
        try:
            name = self.servers.client.primary(call.keys[0]).name
        except exceptions.RedisClusterException:
            name = ""
        lane = self._lanes.get(name)
        if lane is None:
            self._retire()
            lane = self._lanes[name] = Writer(self.servers, self.options)
            if not self._closing:
                lane.start()
        return lane

    def _retire(self) -> None:
        """End the lanes of nodes that left, once they are empty."""
        known = self.servers.client.nodes_manager.nodes_cache
        busy = {id(lane) for lane, _ in self._busy.values()}
        for name, lane in list(self._lanes.items()):
            if name not in known and id(lane) not in busy:
                task = asyncio.create_task(self._lanes.pop(name).close())
                self._retired.add(task)
                task.add_done_callback(self._retired.discard)


Sender = Writer | Lanes
"""Who sends calls in order."""


def sender(
    servers: Servers, options: WriterOptions, on_fenced: Callable[[], None] = lambda: None
) -> Sender:
    """What fits the servers."""
    if isinstance(servers, ClusterServers):
        return Lanes(servers, options, on_fenced)
    return Writer(servers, options, on_fenced)
