"""A whole cluster from its start to the end of its last session, and what each second held."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from typing import Any

from orchestrator.store import EmbeddedRedis
from research.size.clients import Clients, Heard
from research.size.orchestrator import FOREVER_S, Orchestrator
from research.size.redis_shards import Server, Shards, SimulatedClient
from research.size.scenario import Scenario
from research.size.virtual_loop import VirtualLoop, context_of
from research.size.workers import SimulatedLink, SizedVerifier, Worker, drafter, verifier
from services.runtime.registry import Registration
from services.runtime.telemetry import Telemetry

GRACE_S = 10.0


@dataclass(slots=True)
class Second:
    """What one second of the simulation held; CPU in seconds of this machine's."""

    at: int
    sessions: int = 0
    waiting: int = 0
    """Without a verifier."""
    most_on_verifier: int = 0
    mean_on_verifier: float = 0.0
    full_verifiers: int = 0
    """K/V in use above 95 %."""
    speculation: float = 0.0
    """The least share of its window that an orchestrator allows."""
    redis_calls: int = 0
    busiest_shard: int = 0
    cpu_most: float = 0.0
    """Of the busiest orchestrator."""
    cpu_mean: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What happened."""

    scenario: Scenario
    heard: Heard
    seconds: list[Second] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)


def simulate(scenario: Scenario, during: Callable[[], Any] | None = None) -> Outcome:
    """Run it to its end. `during`: called once everything is connected."""
    loop = VirtualLoop()
    with EmbeddedRedis() as redis, ExitStack() as stack:
        stack.enter_context(_quieter("orchestrator", logging.ERROR))
        stack.enter_context(_quieter("asyncio", logging.CRITICAL))
        server = Server(redis.url.removeprefix("unix://"))
        stack.callback(server.close)
        telemetry = Telemetry.start("size", role="orchestrator")
        stack.callback(telemetry.shutdown)
        asyncio.set_event_loop(loop)
        world = loop.run_until_complete(_made(scenario, server, telemetry))
        # What looks through the memory of all of them would be counted as one's CPU.
        gc.disable()
        try:
            return loop.run_until_complete(world.run(during))
        finally:
            gc.enable()
            world.leave()
            _end_tasks(loop)
            loop.close()
            asyncio.set_event_loop(None)


@contextmanager
def _quieter(name: str, level: int) -> Iterator[None]:
    """What this logger says below `level` is dropped until the end."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


async def _made(scenario: Scenario, server: Server, telemetry: Telemetry) -> "World":
    return World(scenario, server, telemetry)


def _end_tasks(loop: VirtualLoop) -> None:
    """Whatever still runs; what the dead were to be woken by is gone, so they are let lie."""
    loop.dead.clear()
    left: set[Any] = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    _, lying = loop.run_until_complete(asyncio.wait(left, timeout=GRACE_S))
    for task in lying:
        task._log_destroy_pending = False


class World:
    """One cluster. Made on a running virtual loop."""

    def __init__(self, scenario: Scenario, server: Server, telemetry: Telemetry) -> None:
        self.scenario, self._server = scenario, server
        self._loop: Any = asyncio.get_running_loop()
        random, times = Random(f"{scenario.seed}/workers"), scenario.times
        self.verifiers = [
            self._verifier(number, random.uniform(0.0, 0.25))
            for number in range(scenario.verifiers)
        ]
        self.drafters = [
            drafter(number, times, scenario.acceptance, scenario.chunk, random.uniform(0.0, 0.25))
            for number in range(scenario.drafters)
        ]
        self.workers = {one.address: one for one in (*self.verifiers, *self.drafters)}
        workers = (*enumerate(self.verifiers), *enumerate(self.drafters))
        self._zones = {one.address: scenario.zone(number) for number, one in workers}
        self.shards = Shards(server, scenario.shards, scenario.call_us)
        self.orchestrators = [
            Orchestrator(
                f"orchestrator-{number}",
                self.workers,
                self.shards,
                telemetry,
                times.hop,
                scenario.subset,
                scenario.zone(number),
                max_sessions=scenario.max_sessions,
                num_speculative_tokens=scenario.window,
            )
            for number in range(scenario.orchestrators)
        ]
        self.clients = Clients(scenario, self.orchestrators)
        self.outcome = Outcome(scenario, self.clients.heard)
        self._before: dict[str, Any] = {}

    async def run(self, during: Callable[[], Any] | None = None) -> Outcome:
        """From the start of the processes to the end of the last session."""
        for worker in self.workers.values():
            await self._register(worker)
        starts = [
            self._loop.create_task(one.start(), context=one.context) for one in self.orchestrators
        ]
        began = self._loop.time()
        await asyncio.gather(*starts)
        figures = self.outcome.figures
        figures["start_s"] = self._loop.time() - began
        links = [link for one in self.orchestrators for link in one.pool.links()]
        figures["links"] = len(links)
        figures["tokenizer_fetches"] = sum(
            link.fetches for link in links if isinstance(link, SimulatedLink)
        )
        figures["start_cpu_s"] = self._own_cpu() / len(self.orchestrators)
        if during is not None:
            during()
        await self._sessions()
        self._sum_up()
        return self.outcome

    def leave(self) -> None:
        """What happens from now on concerns no session."""
        for one in self.orchestrators:
            one.pool.attach(None)

    async def _register(self, worker: Worker) -> None:
        """Its entry, and its heartbeats."""
        client: Any = SimulatedClient(self.shards)
        registration = Registration(
            "",
            worker.core.describe(),
            worker.address,
            worker.progress,
            zone=self._zones[worker.address],
            ttl_s=FOREVER_S,
            client=client,
        )
        await self._loop.create_task(registration.start(), context=context_of("registry"))

    async def _sessions(self) -> None:
        scenario, loop = self.scenario, self._loop
        zero = self._zero = loop.time()
        self._redis_busy = self._server.busy_s()
        self._first = self._counted()
        self._look_at(0)
        loop.call_later(scenario.event_at, self._break)
        tasks = []
        for number, at in enumerate(scenario.arrivals()):
            await asyncio.sleep(max(0.0, zero + at - loop.time()))
            tasks.append(loop.create_task(self.clients.session(number)))
        await asyncio.gather(*tasks)

    def _break(self) -> None:
        """Orchestrators die, and verifiers join."""
        count = round(self.scenario.killed * len(self.orchestrators))
        for one in self.orchestrators[:count]:
            one.kill(self._loop.dead)
        for number in range(self.scenario.joining):
            made = self._verifier(len(self.verifiers), 0.01 * number)
            self.verifiers.append(made)
            self.workers[made.address] = made
            self._zones[made.address] = self.scenario.zone(len(self.verifiers) - 1)
            self._loop.create_task(self._register(made))

    def _verifier(self, number: int, phase: float) -> Worker:
        tokens = self.scenario.kv_tokens
        return verifier(number, self.scenario.times, tokens, tokens // 32, phase)

    # --- figures ----------------------------------------------------------------------

    def _counted(self) -> dict[str, float]:
        traffic = self.shards.traffic
        return {
            "calls": sum(traffic.calls.values()),
            "messages": sum(one.messages for one in self.workers.values()),
            "heartbeats": sum(one.heartbeats for one in self.workers.values()),
            "heartbeats_cpu_s": self._loop.cpu["heartbeats"],
            "orchestrators_cpu_s": self._own_cpu(),
            "sent_bytes": traffic.sent,
            "answered_bytes": traffic.answered,
        }

    def _own_cpu(self) -> float:
        return float(sum(self._loop.cpu[one.name] for one in self.orchestrators))

    def _look_at(self, second: int) -> None:
        self._loop.call_later(1.0, self._look_at, second + 1)
        traffic = self.shards.traffic
        cpu = [self._loop.cpu[one.name] for one in self.orchestrators]
        now = {"cpu": cpu, "calls": sum(traffic.calls.values()), "shards": Counter(traffic.shards)}
        before, self._before = self._before, now
        if before:
            self.outcome.seconds.append(self._second(second, before, now))

    def _second(self, at: int, before: dict[str, Any], now: dict[str, Any]) -> Second:
        living = [one.inference for one in self.orchestrators if one.alive and one.inference]
        on = [one.core.progress() for one in self.verifiers]
        spent = [new - old for new, old in zip(now["cpu"], before["cpu"], strict=True)]
        shards = now["shards"] - before["shards"]
        return Second(
            at,
            sum(one.active_sessions for one in living),
            sum(one.waiting_sessions for one in living),
            max(told.sessions for told in on),
            mean(told.sessions for told in on),
            sum(told.kv_tokens_used > 0.95 * told.kv_tokens_capacity for told in on),
            min(one._admission.speculation for one in living),
            now["calls"] - before["calls"],
            max(shards.values(), default=0),
            max(spent),
            sum(spent) / max(1, sum(one.alive for one in self.orchestrators)),
        )

    def _sum_up(self) -> None:
        figures, after = self.outcome.figures, self._counted()
        passed = self._loop.time() - self._zero
        figures["seconds"] = passed
        for name, value in after.items():
            figures[name] = value - self._first[name]
        figures["redis_busy_s"] = self._server.busy_s() - self._redis_busy
        cores = [one.core for one in self.verifiers if isinstance(one.core, SizedVerifier)]
        figures["refused_by_verifiers"] = sum(core.refused for core in cores)
        prompts = sum(core.prompt_tokens for core in cores)
        figures["cached_share"] = sum(core.cached_tokens for core in cores) / max(1, prompts)
        figures["longest_redis_wait_s"] = self.shards.traffic.longest_wait
        hottest = self.shards.traffic.slots.most_common(1)
        figures["hottest_slot_calls"] = hottest[0][1] if hottest else 0
        self.outcome.calls = self.shards.traffic.calls
