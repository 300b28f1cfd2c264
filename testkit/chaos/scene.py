"""Where faults happen: the cluster, and the sessions that run through it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline import Client

from services.contract.errors import StartError
from testkit.chaos.health import whole
from testkit.chaos.listener import Listener, until
from testkit.chaos.member import Member
from testkit.chaos.site import ORCHESTRATOR, Cluster
from testkit.chaos.transcript import Strike

_SHARE_IN_USE = 0.8
_STARTS = 5


@dataclass(frozen=True, slots=True)
class Leave:
    """How long a process took to end when its node was taken; None = it was killed at last."""

    role: str
    seconds: float | None


@dataclass
class Scene:
    """`rng` draws everything about the faults; `alone`: the fault under way has no other beside."""

    cluster: Cluster
    rng: random.Random
    listeners: set[Listener] = field(default_factory=set)
    strikes: list[Strike] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    alone: bool = True
    _seconds: dict[int, Client] = field(default_factory=dict)

    @property
    def running(self) -> list[Listener]:
        """Sessions under way, in an order that chance does not choose."""
        return sorted((one for one in self.listeners if one.running), key=lambda one: one.name)

    def client(self, first: int = 0) -> Client:
        """The library's client, one orchestrator tried before the others."""
        return self.cluster.client(first=first)

    def takeover_client(self, first: int) -> Client:
        """A client for second resumes, kept until `close`."""
        return self._seconds.setdefault(first, self.client(first))

    async def close(self) -> None:
        """Close the clients of second resumes."""
        for client in self._seconds.values():
            await client.close()

    async def pick(self, role: str) -> Member:
        """A process of this role that serves, most often one that sessions use."""
        members = self.cluster.of(role)
        await until(lambda: any(member.serves for member in members))
        serving = [member for member in members if member.serves]
        used = [member for member in serving if self.of(member)]
        anyone = self.rng.random() >= _SHARE_IN_USE
        return self.rng.choice(serving if anyone or not used else used)

    def strike(self, kind: str, met: Iterable[Listener]) -> None:
        """Note that a fault meets these sessions now; how long they pause is measured."""
        if self.alone:
            self.strikes += [one.latest.transcript.strike(kind) for one in met]

    def of(self, member: Member) -> list[Listener]:
        """The running sessions that this process serves, as far as callers can know."""
        if member.role == ORCHESTRATOR:
            owned = self.cluster.store.owned_by(member.name, [one.name for one in self.running])
            return [one for one in self.running if one.name in owned]
        return [one for one in self.running if one.uses(member.name)]

    async def mend(self) -> None:
        """Wait until every process serves; one that ended unasked is a violation.

        One that ends before it served, as its store was away, is started again, as by whoever
        runs it. Raises StartError for one that never serves.
        """
        for attempt in range(_STARTS):
            for member in self.cluster.members:
                if not member.alive:
                    if member.spec.ready_file.exists():
                        self.violations.append(f"{member.name} ended by itself")
                    member.start()
            try:
                return await whole(self.cluster)
            except StartError:
                if attempt == _STARTS - 1 or all(one.alive for one in self.cluster.members):
                    raise
