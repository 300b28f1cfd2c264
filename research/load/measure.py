"""One case after another: start the processes, let them run, read what they cost."""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from orchestrator.store import EmbeddedRedis
from research.load.clients import crowd
from research.load.yardstick import stroke
from testkit.child import child
from testkit.ports import free_port

HERE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Case:
    """One orchestrator under one load; `tree` is the checkout it comes from.

    `states`: the numbers in a token's hidden states, which it passes on; 0: none.
    """

    sessions: int
    sampling: float
    tree: Path = HERE
    states: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stays the same over all cases."""

    tokens: int = 256
    seconds: float = 6.0
    warm: float = 1.5
    window: int = 8
    verify_ms: float = 0.0
    draft_ms: float = 0.0
    acceptance: float = 0.8
    chunk: int = 4
    prompt: int = 0
    """Tokens of each prompt whose states are passed on."""


def measure(case: Case, around: Surroundings) -> dict[str, Any]:
    """The figures of one case, all per round of the measured time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        redis = stack.enter_context(EmbeddedRedis())
        workers, sink = stack.enter_context(_workers(folder, case, around)).split()
        settings = _settings(case, around, workers, sink, redis.url)
        port = free_port()
        settings["PACELINE_METRICS_PORT"] = str(port)
        with _orchestrator(case, folder, settings) as (process, address):
            figures = asyncio.run(_load(case, around, process, address, f"127.0.0.1:{port}"))
        taken = json.loads((folder / "taken").read_text())
    return figures | _turnaround(taken[len(taken) // 5 :])


async def _load(
    case: Case, around: Surroundings, process: psutil.Process, address: str, metrics: str
) -> dict[str, Any]:
    async with crowd([address], around.tokens) as sessions:
        sessions.resize(case.sessions)
        await asyncio.sleep(around.warm)
        before = await _reading(process, metrics)
        strokes = await _strokes(around.seconds)
        after = await _reading(process, metrics)
    spent = {name: after[name] - before[name] for name in before}
    rounds = spent["rounds"]
    return {
        "sessions": case.sessions,
        "sampling": case.sampling,
        "states": case.states,
        "mb_per_round": 1e-6 * spent["states"] / rounds,
        "rounds_per_s": rounds / spent["wall"],
        "cpu_ms_per_round": 1e3 * spent["cpu"] / rounds,
        "loop_ms_per_round": 1e3 * spent["loop"] / rounds,
        "rounds_per_cpu_s": rounds / spent["cpu"],
        "yardstick_ms": median(strokes),
        "fastest_ms": quantiles(strokes, n=20)[0],
    }


async def _strokes(seconds: float) -> list[float]:
    """What the yardstick took, now and then, while the time went by."""
    ends_at = time.perf_counter() + seconds
    strokes = []
    while time.perf_counter() < ends_at:
        strokes.append(await asyncio.to_thread(stroke))
        await asyncio.sleep(0.1)
    return strokes


async def _reading(process: psutil.Process, metrics: str) -> dict[str, float]:
    page = await asyncio.to_thread(_page, metrics)
    cpu = process.cpu_times()
    main = next(thread for thread in process.threads() if thread.id == process.pid)
    return {
        "wall": time.perf_counter(),
        "cpu": cpu.user + cpu.system,
        "loop": main.user_time + main.system_time,
        "rounds": _sum(page, "paceline_rounds_total"),
        "states": _sum(page, "paceline_states_bytes_total", 'fate="sent"'),
    }


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def _sum(page: str, name: str, label: str = "") -> float:
    found = [line for line in page.splitlines() if line.startswith(name) and label in line]
    lines = (line.rpartition(" ") for line in found)
    return sum(float(value) for _, _, value in lines)


def _turnaround(taken: list[int]) -> dict[str, Any]:
    if len(taken) < 100:
        return {"verdict_to_verify_us": None}
    cuts = quantiles(taken, n=100)
    return {"verdict_to_verify_us": {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}}


# --- processes --------------------------------------------------------------------------


@contextmanager
def _workers(folder: Path, case: Case, around: Surroundings) -> Iterator[str]:
    ready = folder / "workers"
    options = [around.verify_ms, around.draft_ms, around.acceptance, around.chunk]
    options += [case.states, around.prompt] if case.states else []
    command = [sys.executable, "-m", "testkit.load_workers", str(ready), *map(str, options)]
    with child(command, ready, end=SIGTERM):
        yield ready.read_text().strip()


@contextmanager
def _orchestrator(
    case: Case, folder: Path, settings: dict[str, str]
) -> Iterator[tuple[psutil.Process, str]]:
    ready = folder / "ready"
    script = Path(__file__).with_name("watched.py")
    settings |= {
        "PACELINE_READY_FILE": str(ready),
        "PYTHONPATH": f"{case.tree}:{case.tree / 'protos'}",
    }
    command = [sys.executable, str(script), str(folder / "taken")]
    with child(command, ready, settings, end=SIGTERM) as process:
        yield psutil.Process(process.pid), ready.read_text().strip()


def _settings(
    case: Case, around: Surroundings, workers: str, sink: str, redis: str
) -> dict[str, str]:
    settings = {
        "PACELINE_PORT": "0", "PACELINE_REDIS": redis, "PACELINE_VERIFIER_ADDRESSES": workers,
        "PACELINE_DRAFTER_ADDRESSES": workers,
        "PACELINE_NUM_SPECULATIVE_TOKENS": str(around.window), "PACELINE_FALLBACK": "false",
        "PACELINE_GRACE": "0.2", "PACELINE_DETACH_GRACE": "0",
    }  # fmt: skip
    if case.sampling:
        settings |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{sink}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": str(case.sampling),
        }
    return settings
