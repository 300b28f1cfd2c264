"""Records the scalers' own expressions while load rises and falls on a real cluster.

The workers are synthetic, so that a small machine can play a loaded one: they sleep as
long as a forward would take. Orchestrators, gRPC, the store, `/metrics` and Prometheus are
real. How many processes there are does not change meanwhile.
"""

import asyncio
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite

from bench.machine import machine
from bench.synthetic.scenario import parse_times
from bench.synthetic.serving import Way, served
from research.load.clients import crowd
from research.scaling.manifests import Queries
from research.scaling.phases import Phase, go_through
from research.scaling.recording import Recording, Row, Signal
from services.cluster.supervisor import ProcessSpec
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
ORCHESTRATORS = (Way("0"), Way("1"))
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
    targets: list[str] = []

    def measured(spec: ProcessSpec) -> ProcessSpec:
        """With metrics; only verifiers are short of memory."""
        targets.append(f"127.0.0.1:{free_port()}")
        flags = ["--metrics-port", targets[-1].rpartition(":")[2]]
        if spec.name.startswith("verifier"):
            flags += ["--kv-capacity-tokens", str(options.kv_tokens)]
        return replace(spec, argv=(*spec.argv, *flags))

    async with served(ORCHESTRATORS, parse_times(options.times), measured, report) as each:
        with prometheus(program, targets, interval_s=SCRAPE_S) as server:
            await asyncio.to_thread(server.wait_until_scraped)
            async with crowd([one.address for one in each], options.tokens) as made:
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
        {"orchestrator": len(ORCHESTRATORS), "drafter": 1, "verifier": 1},
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
