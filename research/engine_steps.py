"""The engine's forward against transformers' own, blocks of rows and eight sessions against one.

    python -m research.engine_steps --model smollm2-135m-instruct --dtype bfloat16

Every repeat runs all of them in turn, so that a busy machine slows them alike;
the ratios are medians over repeats, with their least and greatest value. With
--batch-invariant it is the engine in that mode against the same without.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from research.command import measuring_parser, ratios, run, table
from services.engine.native import NativeEngine
from services.engine.native.loading import load_model
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.engine.threads import pin

Stepper = Callable[[], object]
_TREE = (-1, 0, 1, 0, -1)
_COMPANIES = ((1, 1), (1, 2), (1, 4), (1, 8), (8, 1), (16, 1), (24, 1), (16, 5))
"""Sessions, and rows of each, in which batch invariance is priced."""


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


def engine_stepper(
    engine: NativeEngine, prompt: list[int], sessions: int, rows: int = 1
) -> Stepper:
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


def tree_stepper(engine: NativeEngine, prompt: list[int]) -> Stepper:
    """One step of a small tree, of three ways, always after the same text."""
    cache = engine.new_cache(len(prompt) + len(_TREE))
    engine.forward([Segment(cache, prompt, logits_from=len(prompt))])

    def step() -> None:
        engine.forward([Segment(cache, (prompt * 2)[: len(_TREE)], parents=_TREE)])
        cache.rollback(len(prompt))

    return step


def timed(
    steppers: Mapping[str, Stepper],
    arguments: argparse.Namespace,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds a step, in turns: of each turn the least, which a busy machine disturbs least.

    The first turn warms up and does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(arguments.repeats + 1):
        for name, step in steppers.items():
            times[name].append(min(_timed(step, clock) for _ in range(arguments.steps)))
    return {name: own[1:] for name, own in times.items()}


def _timed(step: Stepper, clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return (clock() - start) * 1e3


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All times (ms per step) and ratios of one run."""
    return price(arguments) if arguments.batch_invariant else compare(arguments)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the engine, transformers, blocks and several sessions."""
    pin(arguments.threads)
    spec = ModelSpec(arguments.model, arguments.dtype, cache_dir=arguments.cache_dir)
    stock = load_model(spec).model.eval()
    stock.set_attn_implementation("sdpa")
    engine = NativeEngine.load(spec)
    prompt = torch.randint(0, engine.vocab_size, (arguments.context,)).tolist()
    steppers = {
        "transformers": stock_stepper(stock, prompt),
        "one": engine_stepper(engine, prompt, 1),
        "many": engine_stepper(engine, prompt, arguments.sessions),
        **{_block(rows): engine_stepper(engine, prompt, 1, rows) for rows in arguments.rows},
    }
    times = timed(steppers, arguments)
    over = {
        "one session / transformers": ("one", "transformers"),
        f"{arguments.sessions} sessions / one": ("many", "one"),
        **{f"{_block(rows)} / one": (_block(rows), "one") for rows in arguments.rows},
    }
    return {
        "ms_per_step": {name: median(figures) for name, figures in times.items()},
        "ratios": {name: ratios(times[one], times[other]) for name, (one, other) in over.items()},
    }


def price(arguments: argparse.Namespace) -> dict[str, Any]:
    """The same of the mode's steps over those without it."""
    pin(arguments.threads)
    engines = {
        invariant: NativeEngine.load(
            ModelSpec(
                arguments.model,
                arguments.dtype,
                cache_dir=arguments.cache_dir,
                batch_invariant=invariant,
            )
        )
        for invariant in (False, True)
    }
    prompt = torch.randint(0, engines[False].vocab_size, (arguments.context,)).tolist()
    steppers: dict[str, Stepper] = {}
    for sessions, rows in _COMPANIES:
        for invariant, engine in engines.items():
            name = _mode(f"{sessions} x {rows}", invariant)
            steppers[name] = engine_stepper(engine, prompt, sessions, rows)
    for invariant, engine in engines.items():
        steppers[_mode("tree", invariant)] = tree_stepper(engine, prompt)
    times = timed(steppers, arguments)
    shapes = [*(f"{sessions} x {rows}" for sessions, rows in _COMPANIES), "tree"]
    return {
        "ms_per_step": {name: median(figures) for name, figures in times.items()},
        "ratios": {
            f"{name}: with / without": ratios(times[_mode(name, True)], times[_mode(name, False)])
            for name in shapes
        },
    }


def _mode(shape: str, invariant: bool) -> str:
    return f"{shape}, batch-invariant" if invariant else shape


def _block(rows: int) -> str:
    return f"{rows} rows"


def show(report: dict[str, Any]) -> str:
    """The report as two tables."""
    times = [{"step": name, "ms": ms} for name, ms in report["ms_per_step"].items()]
    rows = [{"ratio": name} | ratio for name, ratio in report["ratios"].items()]
    columns = {"ratio": "", "median": ".2f", "min": ".2f", "max": ".2f"}
    return f"{table({'step': '', 'ms': '.2f'}, times)}\n\n{table(columns, rows)}"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__, dtype="bfloat16", repeats=15)
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
    made.add_argument("--cache-dir", type=Path, default=None)
    made.add_argument("--batch-invariant", action="store_true", help="what that mode costs")
    return made


if __name__ == "__main__":
    run(parser(), measure, show)
