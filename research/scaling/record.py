"""Records the scalers' own expressions while load rises and falls on a real cluster.

The workers are synthetic, so that a small machine can play a loaded one: they sleep as
long as a forward would take. Orchestrators, gRPC, the store, `/metrics` and Prometheus are
real. How many processes there are does not change meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path

from bench.machine import machine
from bench.synthetic.scenario import parse_times
from orchestrator.store.embedded import EmbeddedRedis
from research.load.clients import crowd
from research.scaling.manifests import Queries
from research.scaling.phases import Phase, go_through
from research.scaling.recording import Recording, Row, Signal
from services.cluster.specs import ClusterOptions, Site, orchestrator_specs, worker_specs
from services.cluster.supervisor import ProcessSpec, Supervisor
from services.cluster.tether import available_cores
from services.contract.errors import StartError
from testkit.ports import free_port
from testkit.prometheus import Prometheus, prometheus

TIMES = (
    "plain_ms=20,verify_ms=20,row_ms=0.25,session_ms=0.5,prompt_token_ms=0.02,"
    "draft_ms=4,draft_session_ms=1,agreement=0.8"
)
"""Of a target whose step takes 20 ms alone, and some 150 ms with a hundred sessions in it."""
PHASES = "0:30,4:60,24:75,96:90,24:60,4:60,0:150"
STEP_S = 5.0
SCRAPE_S = 1.0
STOP_SECONDS = 30.0
SESSIONS = 'sum(paceline_sessions_active{role="orchestrator"})'


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What runs, and under which load. `tokens`: the length of every session.

    `kv_tokens`: what a verifier's cache holds.
    """

    phases: tuple[Phase, ...]
    times: str = TIMES
    tokens: int = 192
    kv_tokens: int = 36_000
    orchestrators: int = 2
    drafters: int = 1
    verifiers: int = 1


@dataclass(frozen=True, slots=True)
class Served:
    """Where orchestrators serve, and where every process shows its metrics."""

    addresses: tuple[str, ...]
    targets: tuple[str, ...]


async def record(
    options: RecordOptions,
    queries: Queries,
    arguments: Sequence[str],
    report: Callable[[str], None],
) -> Recording:
    """Go through the phases; `arguments` are the command's. Raises StartError."""
    program = shutil.which("prometheus")
    if program is None:
        raise StartError("prometheus is not on PATH; Debian and Ubuntu: apt install prometheus")
    async with _served(options, report) as served:
        with prometheus(program, served.targets, interval_s=SCRAPE_S) as server:
            await asyncio.to_thread(server.wait_until_scraped)
            async with crowd(served.addresses, options.tokens) as made:
                began = time.time()
                report(f"{sum(phase.seconds for phase in options.phases):.0f} s of load")
                await go_through(options.phases, made)
                ended = time.time()
                await made.leave()
            return await asyncio.to_thread(
                _read, server, queries, options, shlex.join(arguments), began, ended
            )


def _read(
    server: Prometheus,
    queries: Queries,
    options: RecordOptions,
    arguments: str,
    began: float,
    ended: float,
) -> Recording:
    """Ask Prometheus what each expression was."""
    steps = int((ended - began) / STEP_S) + 1
    return Recording(
        f"python -m research.scaling {arguments}",
        f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%S} UTC",
        {
            "workers": f"synthetic: {options.times}",
            "tokens": options.tokens,
            "kv_tokens": options.kv_tokens,
            "machine": machine(),
        },
        {
            "orchestrator": options.orchestrators,
            "drafter": options.drafters,
            "verifier": options.verifiers,
        },
        tuple(STEP_S * step for step in range(steps)),
        _row(server, SESSIONS, began, steps),
        {
            tier: {
                name: Signal(query, _row(server, query, began, steps))
                for name, query in triggers.items()
            }
            for tier, triggers in queries.items()
        },
    )


def _row(server: Prometheus, query: str, began: float, steps: int) -> Row:
    """One value a step; None where there is none, or one that no scaler could use."""
    values: list[float | None] = [None] * steps
    for series in server.query_range(query, began, began + STEP_S * (steps - 1), STEP_S):
        for at, value in series.points:
            values[round((at - began) / STEP_S)] = round(value, 3) if isfinite(value) else None
    return tuple(values)


# --- processes ----------------------------------------------------------------------------


@asynccontextmanager
async def _served(options: RecordOptions, report: Callable[[str], None]) -> AsyncIterator[Served]:
    """Every process of a cluster, each with its metrics."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-bench-")))
        file = folder / "synthetic.json"
        file.write_text(parse_times(options.times).model_dump_json(by_alias=True))
        redis = await stack.enter_async_context(EmbeddedRedis(append_only=True))
        supervisor = Supervisor(report, grace=STOP_SECONDS)
        stack.push_async_callback(supervisor.stop)
        cluster = ClusterOptions(
            target="", synthetic=file, verifiers=options.verifiers, drafters=options.drafters
        )
        site = Site(os.getpid(), folder, redis.url, available_cores())
        workers = [_measured(one, *_memory(one, options)) for one in worker_specs(cluster, site)]
        await supervisor.start([spec for spec, _ in workers])
        fronts = [
            _measured(one)
            for index in range(options.orchestrators)
            for one in _orchestrator(cluster, site, index)
        ]
        addresses = await supervisor.start([spec for spec, _ in fronts])
        yield Served(tuple(addresses), tuple(target for _, target in workers + fronts))


def _memory(spec: ProcessSpec, options: RecordOptions) -> tuple[str, ...]:
    """Only verifiers are short of it."""
    if not spec.name.startswith("verifier"):
        return ()
    return ("--kv-capacity-tokens", str(options.kv_tokens))


def _orchestrator(cluster: ClusterOptions, site: Site, index: int) -> list[ProcessSpec]:
    folder = site.folder / f"orchestrator-{index}"
    folder.mkdir()
    specs = orchestrator_specs(cluster, replace(site, folder=folder))
    return [replace(spec, name=f"{spec.name}-{index}") for spec in specs]


def _measured(spec: ProcessSpec, *flags: str) -> tuple[ProcessSpec, str]:
    """The process with more flags, one of them for its metrics, and where these are."""
    port = free_port()
    argv = (*spec.argv, *flags, "--metrics-port", str(port))
    return replace(spec, argv=argv), f"127.0.0.1:{port}"
