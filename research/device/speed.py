"""Milliseconds of steps beside the floor: what reading the weights and the K/V takes at least."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from services.engine.native import NativeEngine, PagedCache
from services.engine.native.device_memory import weight_bytes
from services.engine.port import Segment
from services.engine.spec import ModelSpec

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 320,
        "initializer_range": 0.2,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
}
"""Llama models: those of SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B, and one to check with."""
PROMPT = 512
DRAFTED = 5
"""Draft tokens of a block that is timed."""


class Timing(NamedTuple):
    """Median milliseconds of a step, and of reading what it reads."""

    name: str
    ms: float
    floor_ms: float

    @property
    def over_floor(self) -> float:
        """How many times the floor."""
        return self.ms / self.floor_ms


def random_model(shape: str, device: str, dtype: str) -> Any:
    """A Llama model with random weights, made where it is to run."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=8192)
    config.dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    return model.to(getattr(torch, dtype)).eval()


def bandwidth(device: str, megabytes: int = 256, repeats: int = 9) -> float:
    """Bytes per millisecond that a copy reads and writes together, the median of some."""
    source = torch.ones(megabytes << 18, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _timed(lambda: target.copy_(source), device, repeats)


def speed(
    model: Any, spec: ModelSpec, sessions: Sequence[int], text: int, repeats: int = 9
) -> list[Timing]:
    """Steps of so many sessions at once whose texts have `text` tokens."""
    engine = NativeEngine.taking(model, spec)
    weights, rate = weight_bytes(model), bandwidth(spec.device)
    timings = []
    for count in sessions:
        caches = [_filled(engine, text) for _ in range(count)]
        floor = (weights + count * text * caches[0].bytes_per_token) / rate
        for name, rows in (("one token", 1), (f"{DRAFTED} draft tokens", 1 + DRAFTED)):
            took = _timed(_step(engine, caches, rows), spec.device, repeats)
            timings.append(Timing(f"{count} sessions, {name} each", took, floor))
        for cache in caches:
            cache.free()
    cache = engine.new_cache(PROMPT + 1)
    took = _timed(_step(engine, [cache], PROMPT), spec.device, repeats)
    cache.free()
    timings.append(Timing(f"a prompt of {PROMPT} tokens", took, weights / rate))
    return timings


def _filled(engine: NativeEngine, length: int) -> PagedCache:
    cache = engine.new_cache(length + DRAFTED + 1)
    for start in range(0, length, PROMPT):
        count = min(PROMPT, length - start)
        engine.forward([Segment(cache, [7] * count, logits_from=count)])
    return cache


def _step(engine: NativeEngine, caches: Sequence[PagedCache], rows: int) -> Callable[[], None]:
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
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        if turn > 1:
            times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def _wait(device: str) -> None:
    """Until the device has done what it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
