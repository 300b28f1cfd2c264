"""The engine's forward against transformers' own, blocks of rows and eight sessions against one.

    python -m research.engine_steps --model smollm2-135m-instruct --dtype bfloat16

Every repeat runs all of them in turn, so that a busy machine slows them alike;
the ratios are medians over repeats, with their least and greatest value.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from research.command import measuring_parser, run
from services.engine.native import Engine, ModelSpec, Segment, pin
from services.engine.native.loading import load_model

Stepper = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measured ratio over the repeats."""

    name: str
    median: float
    least: float
    most: float

    @classmethod
    def of(cls, name: str, over: list[float], under: list[float]) -> Ratio:
        """Ratios of paired times."""
        ratios = [a / b for a, b in zip(over, under, strict=True)]
        return cls(name, statistics.median(ratios), min(ratios), max(ratios))


def stock_stepper(model: Any, prompt: list[int]) -> Stepper:
    """One decoding step of transformers with its DynamicCache, always after the same text."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    _stock_forward(model, cache, prompt)

    def step() -> None:
        _stock_forward(model, cache, [prompt[0]])
        cache.crop(-1)

    return step


@torch.inference_mode()
def _stock_forward(model: Any, cache: Any, tokens: list[int]) -> None:
    model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)


def engine_stepper(engine: Engine, prompt: list[int], sessions: int, rows: int = 1) -> Stepper:
    """One step of `rows` tokens of `sessions` sessions together, always after the same texts."""
    caches = [engine.new_cache(len(prompt) + rows) for _ in range(sessions)]
    block = (prompt * rows)[:rows]
    for cache in caches:
        engine.forward([Segment(cache, prompt, logits_from=len(prompt))])

    def step() -> None:
        engine.forward([Segment(cache, block) for cache in caches])
        for cache in caches:
            cache.rollback(len(prompt))

    return step


def timed(step: Stepper, steps: int) -> float:
    """Milliseconds per step: the least of `steps`, which a busy machine disturbs least."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return min(times)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All times (ms per step) and ratios of one run."""
    pin(arguments.threads)
    spec = ModelSpec(arguments.model, arguments.dtype, cache_dir=arguments.cache_dir)
    stock = load_model(spec).model.eval()
    stock.set_attn_implementation("sdpa")
    engine = Engine.load(spec)
    prompt = torch.randint(0, engine.vocab_size, (arguments.context,)).tolist()
    steppers = {
        "transformers": stock_stepper(stock, prompt),
        "one": engine_stepper(engine, prompt, 1),
        "many": engine_stepper(engine, prompt, arguments.sessions),
        **{_block(rows): engine_stepper(engine, prompt, 1, rows) for rows in arguments.rows},
    }
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for repeat in range(arguments.repeats + 1):
        for name, step in steppers.items():
            figure = timed(step, arguments.steps)
            if repeat:
                times[name].append(figure)
    return _report(arguments, times)


def _report(arguments: argparse.Namespace, times: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [
        Ratio.of("one session / transformers", times["one"], times["transformers"]),
        Ratio.of(f"{arguments.sessions} sessions / one", times["many"], times["one"]),
        *[
            Ratio.of(f"{_block(rows)} / one", times[_block(rows)], times["one"])
            for rows in arguments.rows
        ],
    ]
    return {
        "hardware": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "model": arguments.model,
        "dtype": arguments.dtype,
        "context": arguments.context,
        "ms_per_step": {name: statistics.median(figures) for name, figures in times.items()},
        "ratios": {r.name: {"median": r.median, "min": r.least, "max": r.most} for r in ratios},
    }


def _block(rows: int) -> str:
    return f"{rows} rows"


def show(report: dict[str, Any]) -> str:
    """The report as a small table."""
    lines = [f"{report['model']}, {report['dtype']}, {report['threads']} thread(s)"]
    lines += [f"  {name:<28}{ms:8.2f} ms/step" for name, ms in report["ms_per_step"].items()]
    for name, ratio in report["ratios"].items():
        lines.append(
            f"  {name:<28}{ratio['median']:8.2f}  ({ratio['min']:.2f} to {ratio['max']:.2f})"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__)
    made.add_argument("--model", default="smollm2-135m-instruct")
    made.add_argument("--dtype", default="bfloat16")
    made.add_argument("--context", type=int, default=64, help="tokens before the first step")
    made.add_argument("--sessions", type=int, default=8)
    made.add_argument(
        "--rows",
        type=int,
        nargs="*",
        default=[4, 8, 12],
        help="of one session, as drafts are checked",
    )
    made.add_argument("--steps", type=int, default=8, help="steps per turn")
    made.add_argument("--repeats", type=int, default=15)
    made.add_argument("--cache-dir", type=Path, default=None)
    return made


def main() -> None:
    """Measure and print."""
    run(parser().parse_args(), measure, show)


if __name__ == "__main__":
    main()
