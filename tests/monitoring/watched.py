"""A synthetic cluster in real processes, under load, and a real Prometheus that scrapes it."""

import asyncio
import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from paceline import Client

from services.cluster.specs import ClusterOptions, Site, orchestrator_specs, worker_specs
from services.runtime.affinity import available_cores
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.ports import free_port
from testkit.child import child
from tests.monitoring.expressions import RULES
from tests.monitoring.prometheus import Prometheus, prometheus

PATIENCE_SECONDS = 90.0
SCRAPE_SECONDS = 0.5
CLIENTS = 3
TOKENS = 24
TIMES = {
    "name": "watched",
    "verifier": {"plain_ms": 4, "verify_ms": 5},
    "drafter": {"draft_ms": 1},
    "agreement": {"rate": 0.8},
}
# An orchestrator for each.
PACINGS = ("adaptive", "eager")


@dataclass(frozen=True)
class Watched:
    """The cluster, and what Prometheus knows of it."""

    prometheus: Prometheus
    redis: EmbeddedRedis
    orchestrators: Sequence[str]
    processes: dict[str, subprocess.Popen[bytes]]

    def value(self, promql: str) -> float:
        """The one value of an expression; NaN while it has none."""
        return next(iter(self.prometheus.query(promql)), math.nan)

    def until(self, promql: str, holds: Callable[[float], bool]) -> float:
        """Wait until the value is as it must become; the value."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds(value := self.value(promql)):
            assert time.monotonic() < deadline, f"{promql} stays {value}"
            time.sleep(SCRAPE_SECONDS)
        return value

    def answers(self, expressions: Sequence[str]) -> dict[str, list[float]]:
        """What each says, asked until all have a number or patience ends."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        answers: dict[str, list[float]] = {}
        while missing := [one for one in expressions if not says_something(answers.get(one, []))]:
            if time.monotonic() > deadline:
                break
            time.sleep(SCRAPE_SECONDS)
            answers |= {one: self.prometheus.query(one) for one in missing}
        return answers


def says_something(values: Sequence[float]) -> bool:
    """Whether there is a number among them."""
    return not all(map(math.isnan, values))


@contextmanager
def watched() -> Iterator[Watched]:
    """Everything at work, until the end of the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(EmbeddedRedis())
        times = folder / "times.json"
        times.write_text(json.dumps(TIMES))
        options = ClusterOptions(target="", synthetic=times, pacings=PACINGS)
        site = Site(os.getpid(), folder, redis.url, available_cores())
        specs = [*worker_specs(options, site), *orchestrator_specs(options, site)]
        processes, targets = {}, []
        for spec in specs:
            targets.append(f"127.0.0.1:{(port := free_port())}")
            told = {**spec.environment, "PACELINE_METRICS_PORT": str(port)}
            started = child(spec.argv, spec.ready_file, told)
            processes[spec.name] = stack.enter_context(started)
        server = stack.enter_context(prometheus(targets, SCRAPE_SECONDS, RULES))
        addresses = [spec.ready_file.read_text().strip() for spec in specs[-len(PACINGS) :]]
        stack.enter_context(load(addresses))
        made = Watched(server, redis, addresses, processes)
        made.until("sum(up)", lambda up: up == len(targets))
        yield made


@contextmanager
def load(addresses: Sequence[str]) -> Iterator[None]:
    """Clients of each orchestrator that ask again as soon as they have an answer."""
    stop = Event()
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(lambda: asyncio.run(_ask_all(addresses, stop)))
        try:
            yield
        finally:
            stop.set()
        asking.result()


async def _ask_all(addresses: Sequence[str], stop: Event) -> None:
    """Until told to stop; raises what a client raises before."""
    asking = asyncio.gather(
        *(_ask(address, number) for address in addresses for number in range(CLIENTS))
    )
    stopped = asyncio.create_task(asyncio.to_thread(stop.wait))
    await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


async def _ask(address: str, number: int) -> None:
    async with Client(address) as client:
        said = [{"role": "user", "content": f"world {number}"}]
        while True:
            await client.generate(messages=said, max_tokens=TOKENS, temperature=0.0)
