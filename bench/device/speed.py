"""Milliseconds of steps beside the floor: what reading the weights and the K/V takes at least."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bench.device.profile import profiled
from bench.device.shapes import bytes_per_token, weight_bytes
from services.engine.port import Engine, KVCache, Segment
from services.engine.spec import Execution, ModelSpec

PROMPT = 512


class Block(NamedTuple):
    """Tokens of a session in a step. `parents`: None in a chain; `kept`: the path that stays."""

    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    kept: Sequence[int] = ()


BLOCKS = {
    "one token": Block([5]),
    "5 draft tokens": Block([5] * 6),
    "a tree of 10": Block(list(range(5, 16)), [-1, 0, 1, 2, 0, 4, 0, 6, 0, 8, 9], [0, 1, 2]),
}
MOST = max(len(block.tokens) for block in BLOCKS.values())


class Timing(NamedTuple):
    """Median milliseconds of a step, and of reading what it reads; its `profile`, if asked for."""

    name: str
    ms: float
    floor_ms: float
    profile: str = ""

    @property
    def over_floor(self) -> float:
        """How many times the floor."""
        return self.ms / self.floor_ms


@dataclass(frozen=True, slots=True)
class Wanted:
    """Steps of a model of `shape`: each number of `sessions`, whose texts have `text` tokens.

    `memory_share`, `execution`: of an engine's `ModelSpec`. `profile`: each is taken apart, too.
    """

    shape: str
    dtype: str
    device: str
    threads: int
    sessions: Sequence[int]
    text: int
    repeats: int = 9
    execution: Execution = "eager"
    memory_share: float | None = None
    profile: bool = False

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
            execution=self.execution,
            memory_share=self.memory_share,
        )


def bandwidth(device: str, megabytes: int = 256, repeats: int = 9) -> float:
    """Bytes per millisecond that a copy reads and writes together, the median of some."""
    source = torch.ones(megabytes << 18, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _timed(lambda: target.copy_(source), device, repeats)


def speed(engine: Engine, wanted: Wanted, device: str) -> list[Timing]:
    """Steps of an engine whose model is on `device`."""

    def timing(name: str, step: Callable[[], object], floor: float) -> Timing:
        took = _timed(step, device, wanted.repeats)
        return Timing(name, took, floor, profiled(step, device) if wanted.profile else "")

    weights, rate = weight_bytes(wanted.shape, wanted.dtype), bandwidth(device)
    each = wanted.text * bytes_per_token(wanted.shape, wanted.dtype, wanted.device)
    timings = []
    for count in wanted.sessions:
        caches = [_filled(engine, wanted.text) for _ in range(count)]
        floor = (weights + count * each) / rate
        for name, block in BLOCKS.items():
            timings.append(timing(f"{count} x {name}", _step(engine, caches, block), floor))
        for cache in caches:
            cache.free()
    cache = engine.new_cache(PROMPT + 1)
    step = _step(engine, [cache], Block([5] * PROMPT), logits_from=PROMPT - 1)
    timings.append(timing(f"a prompt of {PROMPT} tokens", step, weights / rate))
    cache.free()
    return timings


def _filled(engine: Engine, length: int) -> KVCache:
    cache = engine.new_cache(length + MOST)
    for start in range(0, length, PROMPT):
        count = min(PROMPT, length - start)
        engine.forward([Segment(cache, [7] * count, logits_from=count)])
    return cache


def _step(
    engine: Engine, caches: Sequence[KVCache], block: Block, logits_from: int = 0
) -> Callable[[], None]:
    """A step with one block of each session, of whose nodes some stay; then all is taken back."""
    lengths = [cache.length for cache in caches]
    tokens, parents, kept = block

    def step() -> None:
        engine.forward([Segment(cache, tokens, parents, logits_from) for cache in caches])
        for cache, length in zip(caches, lengths, strict=True):
            if parents is not None:
                cache.keep_path(length, kept)
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
