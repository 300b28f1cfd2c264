"""Good sessions in a quiet time, under attack, and in a quiet time again."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline import Client

from testkit.chaos.health import left_behind, whole
from testkit.chaos.listener import Listener
from testkit.chaos.run import undisturbed
from testkit.chaos.site import ORCHESTRATOR, Cluster
from testkit.chaos.transcript import Case, Transcript
from testkit.hostile.attacks import ATTACKS
from testkit.hostile.watch import Reading, Watch

_SESSION_SECONDS = 300.0
_CHECK_SECONDS, _CHECK_EVERY = 10.0, 0.25
_LOOK_EVERY = 0.05
_LEFT_SECONDS = 20.0
"""For so long sessions that hostile callers left may go on."""


@dataclass(frozen=True, slots=True)
class HostilePlan:
    """How long each time lasts (s), how many good sessions run, how many calls attack, and how.

    `warm`: before anything is measured, in which good sessions begin one by one, so that they
    also end one by one, at all times alike.
    """

    warm: float = 40.0
    quiet: float = 15.0
    attack: float = 60.0
    sessions: int = 16
    lanes: int = 24
    kinds: Sequence[str] = tuple(ATTACKS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may come of it at most: pace lost (share), gap and lag (s), memory (times, bytes)."""

    pace_lost: float = 0.15
    gap: float = 1.0
    lag_p99: float = 0.1
    growth: float = 1.5
    memory: dict[str, int] = field(default_factory=dict)
    """Most bytes by role; a role that is left out has no such bound."""


@dataclass
class HostileResult:
    """What was seen. Paces in tokens per second of all good sessions together."""

    quiet_before: float = 0.0
    attacked: float = 0.0
    quiet_after: float = 0.0
    gap: float = 0.0
    """Seconds that a good session under attack waited for its next tokens at most."""
    sessions: int = 0
    readings: list[Reading] = field(default_factory=list)
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def lost(self) -> float:
        """The share of the quiet pace that the attack took."""
        quiet = (self.quiet_before + self.quiet_after) / 2
        return 1 - self.attacked / quiet if quiet else 1.0


class Hostile:
    """One run on one cluster, whose clients are the good tenant. `bad`: the other's token."""

    def __init__(
        self,
        cluster: Cluster,
        cases: Sequence[Case],
        plan: HostilePlan,
        bounds: Bounds,
        bad: str,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`report` gets a line of progress now and then."""
        self._cluster, self._cases, self._plan, self._bounds = cluster, cases, plan, bounds
        self._bad, self._report = bad, report
        self._outcome = HostileResult()
        self._texts: list[Transcript] = []
        self._listeners: set[Listener] = set()
        self._ended_tokens = 0
        self._over = False

    async def run(self) -> HostileResult:
        """The whole run."""
        self._texts = await undisturbed(self._cluster, self._cases)
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.sessions):
                group.create_task(self._lane(number))
            for member in self._cluster.of(ORCHESTRATOR):
                group.create_task(self._check(member.address))
            try:
                await self._times()
            finally:
                self._over = True
        self._outcome.violations += await left_behind(self._cluster)
        return self._outcome

    async def _times(self) -> None:
        outcome, plan = self._outcome, self._plan
        await asyncio.sleep(plan.warm)
        outcome.quiet_before = await self._pace(asyncio.sleep(plan.quiet))
        self._report(f"quiet: {outcome.quiet_before:.1f} tokens/s")
        watch = Watch(self._cluster)
        await watch.begin()
        watching = [asyncio.create_task(look) for look in (watch.run(), self._look_for_gaps())]
        outcome.attacked = await self._pace(self._attack())
        outcome.readings = await watch.end()
        for one in watching:
            one.cancel()
        self._report(f"under attack: {outcome.attacked:.1f} tokens/s, a gap of {outcome.gap:.2f} s")
        await whole(self._cluster)
        await asyncio.sleep(_LEFT_SECONDS)
        outcome.quiet_after = await self._pace(asyncio.sleep(plan.quiet))
        self._report(f"quiet again: {outcome.quiet_after:.1f} tokens/s")
        self._judge(watch)

    async def _pace(self, meanwhile: Awaitable[None]) -> float:
        """Tokens per second that good sessions heard while something went on."""
        began, heard = time.monotonic(), self._heard()
        await meanwhile
        return (self._heard() - heard) / (time.monotonic() - began)

    def _heard(self) -> int:
        return self._ended_tokens + sum(len(one.transcript.token_ids) for one in self._listeners)

    async def _look_for_gaps(self) -> None:
        """Until cancelled."""
        while True:
            now = time.monotonic()
            waiting = [now - one.transcript.heard_at for one in self._listeners if one.running]
            self._outcome.gap = max(self._outcome.gap, *waiting, 0.0)
            await asyncio.sleep(_LOOK_EVERY)

    async def _attack(self) -> None:
        """Let the sender run, and read what it says."""
        addresses = [member.address for member in self._cluster.of(ORCHESTRATOR)]
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "testkit.hostile.sender", self._bad),
            *(str(self._plan.lanes), str(self._plan.attack), ",".join(self._plan.kinds)),
            *addresses,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            said, _ = await sender.communicate()
        finally:
            if sender.returncode is None:
                sender.kill()
        self._outcome.ends = json.loads(said)

    async def _check(self, address: str) -> None:
        """Ask for an orchestrator's health again and again, as a probe does, without a token."""
        async with grpc.aio.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            while not self._over:
                try:
                    await check(health_pb2.HealthCheckRequest(), timeout=_CHECK_SECONDS)
                except grpc.aio.AioRpcError as error:
                    self._outcome.violations.append(f"{address}: a check: {error.code().name}")
                await asyncio.sleep(_CHECK_EVERY)

    async def _lane(self, number: int) -> None:
        """Good sessions one after another."""
        await asyncio.sleep(self._plan.warm * number / self._plan.sessions)
        async with self._cluster.client() as client:
            while not self._over:
                await self._session(client, number)

    async def _session(self, client: Client, number: int) -> None:
        index = self._outcome.sessions
        self._outcome.sessions += 1
        which = (number + index) % len(self._cases)
        listener = Listener(f"good-{index:05}", self._cases[which])
        self._listeners.add(listener.ask(client))
        try:
            async with asyncio.timeout(_SESSION_SECONDS):
                await listener.end()
        except TimeoutError:
            self._outcome.violations.append(f"{listener.name}: no end in {_SESSION_SECONDS:.0f} s")
        self._listeners.discard(listener)
        self._ended_tokens += len(listener.transcript.token_ids)
        found = listener.differences(self._texts[which])
        self._outcome.violations += [f"{listener.name}: {line}" for line in found]

    # --- what may not be --------------------------------------------------------------

    def _judge(self, watch: Watch) -> None:
        outcome, bounds = self._outcome, self._bounds
        if outcome.lost > bounds.pace_lost:
            outcome.violations.append(
                f"good sessions lost {outcome.lost:.1%} of their pace, more than "
                f"{bounds.pace_lost:.0%}"
            )
        if outcome.gap > bounds.gap:
            outcome.violations.append(f"a good session stood still for {outcome.gap:.1f} s")
        outcome.violations += [f"{name} ended or restarted" for name in watch.restarted()]
        for reading in outcome.readings:
            outcome.violations += self._complaints(reading)

    def _complaints(self, reading: Reading) -> list[str]:
        bounds, found = self._bounds, []
        if reading.lag_p99 > bounds.lag_p99:
            found.append(f"{reading.name}: p99 of its loop's lag is {1e3 * reading.lag_p99:.0f} ms")
        if reading.growth > bounds.growth:
            found.append(f"{reading.name}: {reading.growth:.2f} times its memory")
        most = bounds.memory.get(reading.name.partition("-")[0])
        if most is not None and reading.family > most:
            found.append(
                f"{reading.name}: {reading.family >> 20} MiB with its children, more than the "
                f"{most >> 20} of its pod"
            )
        return found
