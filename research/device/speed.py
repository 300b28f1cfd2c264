"""Milliseconds of steps beside the floor: what reading the weights and the K/V takes at least."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from research.device.shapes import bytes_per_token, weight_bytes
from services.engine.port import Engine, KVCache, Segment
from services.engine.spec import ModelSpec

PROMPT = 512
DRAFTED = 5
"""Draft tokens of a block that is timed."""


class Timing(NamedTuple):
    """Median milliseconds of a step, and of reading what it reads.

    `own_ms`: of the step, what is not the model; None where that was not taken apart.
    """

    name: str
    ms: float
    floor_ms: float
    own_ms: float | None = None

    @property
    def over_floor(self) -> float:
        """How many times the floor."""
        return self.ms / self.floor_ms


@dataclass(frozen=True, slots=True)
class Wanted:
    """Steps of a model of `shape`: each number of `sessions`, whose texts have `text` tokens."""

    shape: str
    dtype: str
    device: str
    threads: int
    sessions: Sequence[int]
    text: int
    repeats: int = 9

    def spec(self, model: str, engine: str = "native") -> ModelSpec:
        """What an engine is asked to load for them."""
        return ModelSpec(
            model,
            self.dtype,
            self.device,
            self.threads,
            kv_capacity_tokens=max(self.sessions) * (self.text + 128) + 1024,
            max_context=max(self.text, PROMPT) + 64,
            engine=engine,
        )


def bandwidth(device: str, megabytes: int = 256, repeats: int = 9) -> float:
    """Bytes per millisecond that a copy reads and writes together, the median of some."""
    source = torch.ones(megabytes << 18, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _timed(lambda: target.copy_(source), device, repeats)


Own = Callable[[Callable[[], object]], float]
"""From a step to its milliseconds outside the model."""


def speed(engine: Engine, wanted: Wanted, device: str, own: Own | None = None) -> list[Timing]:
    """Steps of an engine whose model is on `device`."""

    def timing(name: str, step: Callable[[], object], floor: float) -> Timing:
        took = _timed(step, device, wanted.repeats)
        apart = own and statistics.median(own(step) for _ in range(wanted.repeats))
        return Timing(name, took, floor, apart)

    weights, rate = weight_bytes(wanted.shape, wanted.dtype), bandwidth(device)
    each = wanted.text * bytes_per_token(wanted.shape, wanted.dtype, wanted.device)
    timings = []
    for count in wanted.sessions:
        caches = [_filled(engine, wanted.text) for _ in range(count)]
        floor = (weights + count * each) / rate
        for name, rows in (("one token", 1), (f"{DRAFTED} draft tokens", 1 + DRAFTED)):
            step = _step(engine, caches, rows)
            timings.append(timing(f"{count} sessions, {name} each", step, floor))
        for cache in caches:
            cache.free()
    cache = engine.new_cache(PROMPT + 1)
    step = _step(engine, [cache], PROMPT)
    timings.append(timing(f"a prompt of {PROMPT} tokens", step, weights / rate))
    cache.free()
    return timings


def _filled(engine: Engine, length: int) -> KVCache:
    cache = engine.new_cache(length + DRAFTED + 1)
    for start in range(0, length, PROMPT):
        count = min(PROMPT, length - start)
        engine.forward([Segment(cache, [7] * count, logits_from=count)])
    return cache


def _step(engine: Engine, caches: Sequence[KVCache], rows: int) -> Callable[[], None]:
    lengths = [cache.length for cache in caches]

    def step() -> None:
        engine.forward([Segment(cache, [5] * rows, logits_from=rows - 1) for cache in caches])
        for cache, length in zip(caches, lengths, strict=True):
            cache.rollback(length)

    return step


def _timed(call: Callable[[], object], device: str, repeats: int) -> float:
    """The median time in milliseconds, after two calls that are not counted."""
    times = []
    for turn in range(repeats + 2):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        if turn > 1:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
