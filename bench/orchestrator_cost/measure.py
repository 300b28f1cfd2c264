"""One case after another: start the processes, let them run, read what they cost."""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from bench.cpu import cpu_seconds
from services.cluster.supervisor import ProcessSpec, Supervisor
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.ports import free_port

HERE = Path(__file__).resolve().parents[2]
PROMPT = "the small drafter rides ahead and the large verifier checks " * 2
STROKE = 20_000
"""Turns of a loop that takes as long as the machine's cores are slow."""


@dataclass(frozen=True, slots=True)
class Case:
    """One orchestrator under one load; `tree` is the checkout it comes from.

    `sessions`: at once. `sampling`: the share of them that is traced. `states`: the numbers in a
    token's hidden states, which it passes on; 0: none.
    """

    sessions: int
    sampling: float
    tree: Path = HERE
    states: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stays the same over all cases. `prompt`: tokens of which states are passed on."""

    tokens: int = 256
    seconds: float = 6.0
    warm: float = 1.5
    window: int = 8
    verify_ms: float = 6.0
    draft_ms: float = 2.0
    acceptance: float = 0.8
    chunk: int = 4
    prompt: int = 0


async def measure(case: Case, around: Surroundings) -> dict[str, Any]:
    """The figures of one case, over its measured time. Raises StartError."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        async with _processes(case, around, folder) as (address, metrics, pid):
            figures = await _load(case, around, address, metrics, pid)
        stayed = json.loads((folder / "stayed").read_text())
    return figures | {f"{kind}_us": _parts(every) for kind, every in stayed.items()}


@asynccontextmanager
async def _processes(
    case: Case, around: Surroundings, folder: Path
) -> AsyncIterator[tuple[str, str, int]]:
    """The orchestrator's address, that of its metrics and its process id."""
    said: list[str] = []
    supervisor = Supervisor(said.append, grace=30.0)
    with EmbeddedRedis() as redis:
        try:
            [started] = await supervisor.start([_workers(case, around, folder)])
            workers, sink = started.split()
            metrics = free_port()
            settings = _settings(case, around, workers, sink)
            settings |= {"PACELINE_REDIS": redis.url, "PACELINE_METRICS_PORT": str(metrics)}
            [address] = await supervisor.start([_orchestrator(case, folder, settings)])
            yield address, f"127.0.0.1:{metrics}", supervisor.pids["orchestrator"]
        finally:
            await supervisor.stop()


async def _load(
    case: Case, around: Surroundings, address: str, metrics: str, pid: int
) -> dict[str, Any]:
    async with _crowd(address, case.sessions, around.tokens):
        await asyncio.sleep(around.warm)
        before = await _reading(pid, metrics)
        strokes = await _strokes(around.seconds)
        after = await _reading(pid, metrics)
    spent = {name: after[name] - before[name] for name in before}
    rounds = spent["rounds"]
    return {
        "sessions": case.sessions,
        "sampling": case.sampling,
        "states": case.states,
        "mb_per_round": 1e-6 * spent["states"] / rounds,
        "rounds_per_s": rounds / spent["wall"],
        "cpu_ms_per_round": 1e3 * spent["cpu"] / rounds,
        "cpu_ms_per_token": 1e3 * spent["cpu"] / spent["tokens"],
        "rounds_per_cpu_s": rounds / spent["cpu"],
        "yardstick_ms": median(strokes),
        "fastest_ms": quantiles(strokes, n=20)[0],
    }


@asynccontextmanager
async def _crowd(address: str, sessions: int, tokens: int) -> AsyncIterator[None]:
    """So many sessions at a time, one after another. Raises what one failed with."""
    sampling = pb.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    asked = pb.GenerateRequest(prompt=PROMPT, sampling=sampling)

    async def place(stub: pb_grpc.InferenceServiceStub) -> None:
        while True:
            async for _ in stub.Generate(asked):
                pass

    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        places = [asyncio.create_task(place(stub)) for _ in range(sessions)]
        yield
        for task in places:
            task.cancel()
        for ended in await asyncio.gather(*places, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def _strokes(seconds: float) -> list[float]:
    """What the yardstick took, now and then, while the time went by."""
    ends_at = time.perf_counter() + seconds
    strokes: list[float] = []
    while time.perf_counter() < ends_at or len(strokes) < 2:
        strokes.append(await asyncio.to_thread(stroke))
        await asyncio.sleep(0.1)
    return strokes


def stroke() -> float:
    """CPU milliseconds of a fixed piece of Python: more where other work disturbs the cores."""
    began = time.thread_time()
    total = 0
    for turn in range(STROKE):
        total += turn & 7
    return 1e3 * (time.thread_time() - began)


async def _reading(pid: int, metrics: str) -> dict[str, float]:
    page = await asyncio.to_thread(_page, metrics)
    return {
        "wall": time.perf_counter(),
        "cpu": cpu_seconds(pid) or 0.0,
        "rounds": _sum(page, "paceline_rounds_total"),
        "tokens": _sum(page, "paceline_emitted_tokens_total"),
        "states": _sum(page, "paceline_states_bytes_total", 'fate="sent"'),
    }


def _page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def _sum(page: str, name: str, label: str = "") -> float:
    found = [line for line in page.splitlines() if line.startswith(name) and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def _parts(taken: list[int]) -> dict[str, float] | None:
    """Percentiles of what was taken once all were warm; None of too few."""
    warm = taken[len(taken) // 5 :]
    if len(warm) < 100:
        return None
    cuts = quantiles(warm, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


# --- processes --------------------------------------------------------------------------


def _workers(case: Case, around: Surroundings, folder: Path) -> ProcessSpec:
    ready = folder / "workers"
    given = [around.verify_ms, around.draft_ms, around.acceptance, around.chunk]
    given += [case.states, around.prompt] if case.states else []
    argv = (sys.executable, "-m", "testkit.load_workers", str(ready), *map(str, given))
    return ProcessSpec("workers", argv, ready, folder / "workers.log", _path(HERE))


def _orchestrator(case: Case, folder: Path, settings: dict[str, str]) -> ProcessSpec:
    ready = folder / "ready"
    argv = (sys.executable, str(Path(__file__).with_name("watched.py")), str(folder / "stayed"))
    environment = settings | {"PACELINE_READY_FILE": str(ready)} | _path(case.tree)
    return ProcessSpec("orchestrator", argv, ready, folder / "orchestrator.log", environment)


def _path(tree: Path) -> dict[str, str]:
    return {"PYTHONPATH": f"{tree}:{tree / 'protos'}"}


def _settings(case: Case, around: Surroundings, workers: str, sink: str) -> dict[str, str]:
    settings = {
        "PACELINE_PORT": "0", "PACELINE_VERIFIER_ADDRESSES": workers,
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
