"""The same rows from two engines: chunks, crowds, rollbacks, trees, copies, and what is refused."""

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.contract.errors import Overloaded, StartError
from services.engine.native import NativeEngine, PagedCache
from services.engine.native.pages import PAGE
from services.engine.native.selfcheck import TOLERANCES, difference
from services.engine.port import KVCache, Segment
from services.engine.spec import ModelSpec

CAPACITY = 8 * 1024
LENGTHS = (3, 17, PAGE - 1, PAGE, 2 * PAGE + 9, 5 * PAGE)
STEPS = 4


class Finding(NamedTuple):
    """`figure`: the largest row difference (RMS over the row's standard deviation)."""

    name: str
    dtype: str
    figure: float
    tolerance: float

    @property
    def right(self) -> bool:
        """Whether it is within the tolerance."""
        return self.figure <= self.tolerance


def check(model: Any, device: str, dtypes: Sequence[str]) -> list[Finding]:
    """What a float32 model on the CPU computes, on `device` in each of `dtypes`."""
    expected = _rows(_engine(model, "cpu", "float32"))
    findings = []
    for dtype in dtypes:
        engine = _engine(model, device, dtype)
        tolerance = TOLERANCES[getattr(torch, dtype)]
        for name, rows in _rows(engine).items():
            findings.append(Finding(name, dtype, difference(rows, expected[name]), tolerance))
        findings += [Finding(name, dtype, float(not kept), 0.0) for name, kept in _refusals(engine)]
    return findings


def _engine(model: Any, device: str, dtype: str) -> NativeEngine:
    placed = copy.deepcopy(model).to(device=device, dtype=getattr(torch, dtype))
    spec = ModelSpec("tiny", dtype=dtype, device=device, kv_capacity_tokens=CAPACITY)
    return NativeEngine.taking(placed, spec)


def _text(length: int, vocab: int, seed: int) -> list[int]:
    drawn = random.Random(f"{length}/{seed}")
    return [drawn.randrange(vocab) for _ in range(length)]


def _rows(engine: NativeEngine) -> dict[str, Tensor]:
    """Logits [rows, V] on the CPU, by what they were computed for."""
    scenes: dict[str, Callable[[NativeEngine], list[Tensor]]] = {
        "prompts in chunks": _chunks,
        "decoding together": _crowd,
        "blocks of several rows": _blocks,
        "after a rollback": _rolled_back,
        "trees": _trees,
        "beginnings copied": _copied,
    }
    found = {name: torch.cat(scene(engine)).cpu() for name, scene in scenes.items()}
    assert engine.kv_tokens_used == 0
    return found


def _fed(engine: NativeEngine, texts: Sequence[Sequence[int]]) -> list[PagedCache]:
    """A cache for each text, filled in one step."""
    caches = [engine.new_cache(len(text) + 64) for text in texts]
    engine.forward(
        [Segment(cache, text, None, len(text)) for cache, text in zip(caches, texts, strict=True)]
    )
    return caches


def _freed(caches: Sequence[KVCache]) -> None:
    for cache in caches:
        cache.free()


def _texts(engine: NativeEngine) -> list[list[int]]:
    return [_text(length, engine.vocab_size, place) for place, length in enumerate(LENGTHS)]


def _chunks(engine: NativeEngine) -> list[Tensor]:
    text = _text(4 * PAGE + 7, engine.vocab_size, 1)
    cache, rows = engine.new_cache(len(text)), []
    for start in range(0, len(text), 77):
        rows += engine.forward([Segment(cache, text[start : start + 77])])
    cache.free()
    return rows


def _crowd(engine: NativeEngine) -> list[Tensor]:
    caches, rows = _fed(engine, _texts(engine)), []
    for step in range(STEPS):
        rows += engine.forward([Segment(cache, [step + 5]) for cache in caches])
    _freed(caches)
    return rows


def _blocks(engine: NativeEngine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    sizes = (1, 2, 5, 17, 33, 40)
    rows = engine.forward(
        [
            Segment(cache, _text(size, engine.vocab_size, 7))
            for cache, size in zip(caches, sizes, strict=True)
        ]
    )
    _freed(caches)
    return rows


def _rolled_back(engine: NativeEngine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    for cache in caches:
        cache.rollback(cache.length - 2)
    rows = engine.forward([Segment(cache, [9, 8, 7, 6]) for cache in caches])
    _freed(caches)
    return rows


def _trees(engine: NativeEngine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    parents = [-1, -1, 0, 1, 1, 4]
    nodes = _text(len(parents), engine.vocab_size, 3)
    rows = engine.forward([Segment(cache, nodes, parents) for cache in caches])
    for cache, text in zip(caches, _texts(engine), strict=True):
        cache.keep_path(len(text), [1, 4, 5])
    rows += engine.forward([Segment(cache, [11]) for cache in caches])
    _freed(caches)
    return rows


def _copied(engine: NativeEngine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine)[-2:])
    branches = [cache.fork(cache.length + 8) for cache in caches]
    begun = engine.new_cache(200)
    begun.copy_prefix(caches[-1], PAGE + 3)
    every = [*caches, *branches, begun]
    rows = engine.forward([Segment(cache, [place, 5]) for place, cache in enumerate(every)])
    _freed(every)
    return rows


def _refusals(engine: NativeEngine) -> list[tuple[str, bool]]:
    """What is to be refused, and whether it was."""
    return [
        ("a session beyond the budget is refused", _refused(engine)),
        ("K/V beyond the device's memory is refused", _too_much(engine)),
    ]


def _refused(engine: NativeEngine) -> bool:
    try:
        engine.new_cache(CAPACITY + 1).free()
    except Overloaded:
        return engine.kv_tokens_used == 0
    return False


def _too_much(engine: NativeEngine) -> bool:
    spec = ModelSpec("tiny", dtype=engine.dtype, kv_capacity_tokens=1 << 50)
    try:
        NativeEngine.from_model(engine.model, spec=spec)
    except StartError as error:
        return "are free" in str(error)
    return False
