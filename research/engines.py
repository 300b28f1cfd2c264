"""Steps of the native engine and of vLLM, as the model is and compiled, in turns.

    .venv/bin/python -m research.engines --model smollm2-135m-instruct --dtype float32

They never share a process: each runs in a child of its own environment's Python and does a
turn of steps when it is told to, while the others wait. `own`: of a step by vLLM, what is
not the model: blocks, positions, slots, metadata and the call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from research.command import measuring_parser, ratios, run, table
from services.engine import start
from services.engine.port import Engine, Segment
from services.engine.spec import ModelSpec

RUNS = ("native", "vllm", "vllm compiled")
SHAPES = {"1 x 1": (1, 1), "8 x 1": (8, 1), "16 x 1": (16, 1), "16 x 5": (16, 5)}
"""Sessions, and rows of each."""


class Steps:
    """The engine of this process, and steps of it that always follow the same texts."""

    def __init__(self, engine: Engine, context: int) -> None:
        self._engine, self._context = engine, context
        text = [7 + i % 50 for i in range(context)]
        most = max(sessions for sessions, _ in SHAPES.values())
        self._caches = [engine.new_cache(context + 8) for _ in range(most)]
        for cache in self._caches:
            engine.forward([Segment(cache, text, logits_from=context)])

    def time(self, sessions: int, rows: int) -> float:
        """Milliseconds of one step."""
        caches = self._caches[:sessions]
        segments = [Segment(cache, [5] * rows) for cache in caches]
        began = time.perf_counter()
        self._engine.forward(segments)
        took = 1e3 * (time.perf_counter() - began)
        for cache in caches:
            cache.rollback(self._context)
        return took


def serve(arguments: argparse.Namespace) -> None:
    """What a child does: a line of JSON for each turn that it is told to do."""
    spec = ModelSpec(
        arguments.model,
        arguments.dtype,
        threads=arguments.threads,
        kv_capacity_tokens=32 * (arguments.context + 64),
        max_context=2 * arguments.context,
        engine=arguments.child.split()[0],
        execution="compiled" if "compiled" in arguments.child else "eager",
    )
    engine = start.load(spec)
    inside = ModelTime(engine) if spec.engine == "vllm" else None
    steps = Steps(engine, arguments.context)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        least = min(_step(steps, inside, SHAPES[line.strip()]) for _ in range(arguments.steps))
        print(json.dumps(least), flush=True)


def _step(steps: Steps, inside: ModelTime | None, shape: tuple[int, int]) -> tuple[float, float]:
    """Milliseconds of a step, and of it what is not the model."""
    if inside is None:
        return steps.time(*shape), 0.0
    inside.ms = 0.0
    took = steps.time(*shape)
    return took, took - inside.ms


class ModelTime:
    """Milliseconds that vLLM's model takes: its layers and its head.

    `wait`: until its device has done what it was given.
    """

    def __init__(self, engine: Any) -> None:
        self.ms = 0.0
        self.wait: Callable[[], object] = lambda: None
        part = engine._compute.__self__
        part.llm.apply_model(self._watch)

    def _watch(self, model: Any) -> None:
        for name in ("forward", "compute_logits"):
            setattr(model, name, self._timed(getattr(model, name)))

    def _timed(self, function: Any) -> Any:
        def timed(*given: Any, **named: Any) -> Any:
            self.wait()
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.wait()
                self.ms += 1e3 * (time.perf_counter() - began)

        return timed


@contextmanager
def child(engine: str, python: str, flags: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with one of the engines, loaded."""
    command = [python, "-m", "research.engines", "--child", engine, *flags]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        _read(process)
        yield process
        process.kill()


def _read(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    for line in process.stdout:
        # vLLM says things on stdout, too.
        try:
            return json.loads(line)
        except ValueError:
            continue
    raise RuntimeError("an engine ended")


def _ask(process: subprocess.Popen[str], shape: str) -> tuple[float, float]:
    assert process.stdin is not None
    process.stdin.write(f"{shape}\n")
    process.stdin.flush()
    took, own = _read(process)
    return took, own


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each engine's steps, and how many times as long vLLM's take."""
    pythons = dict.fromkeys(RUNS, arguments.vllm_python) | {"native": sys.executable}
    flags = ["--model", arguments.model, "--dtype", arguments.dtype, "--steps", arguments.steps]
    flags += ["--context", arguments.context, "--threads", arguments.threads or 1]
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(child(name, pythons[name], [str(one) for one in flags]))
            for name in RUNS
        }
        times: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(arguments.repeats):
            for shape in SHAPES:
                for name, process in running.items():
                    times.setdefault((shape, name), []).append(_ask(process, shape))
    return {"steps": [_row(shape, times) for shape in SHAPES]}


def _row(
    shape: str, times: Mapping[tuple[str, str], Sequence[tuple[float, float]]]
) -> dict[str, Any]:
    took = {name: [one for one, _ in times[shape, name]] for name in RUNS}
    own = median(own for _, own in times[shape, "vllm"])
    medians = {name: median(found) for name, found in took.items()}
    compiled = ratios(took["vllm compiled"], took["vllm"])["median"]
    told = {"own": own, "by compiling": compiled} | ratios(took["vllm"], took["native"])
    return {"step": shape} | medians | told


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    columns = {"step": ""} | dict.fromkeys(RUNS, ".1f") | {"own": ".2f", "by compiling": ".2f"}
    return table(columns | {"median": ".2f", "min": ".2f", "max": ".2f"}, report["steps"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="float32", repeats=9)
    made.add_argument("--context", type=int, default=256, help="tokens before each step")
    made.add_argument("--steps", type=int, default=4, help="steps per turn, the fastest counts")
    made.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="that has vLLM")
    made.add_argument("--child", choices=RUNS, default=None, help=argparse.SUPPRESS)
    return made


if __name__ == "__main__":
    if (given := parser().parse_args()).child is not None:
        serve(given)
    else:
        run(parser(), measure, show)
