"""What an engine is asked to compute, through its port alone, and what it is to refuse."""

import random
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from services.contract.errors import Overloaded
from services.engine.budgeted import BudgetedCache
from services.engine.port import Engine, KVCache, Segment

CAPACITY = 8 * 1024
PAGE = 64
"""Tokens of a page of the native engine; a multiple of vLLM's blocks."""
LENGTHS = (3, 17, PAGE - 1, PAGE, 2 * PAGE + 9, 5 * PAGE)
STEPS = 4


def rows(engine: Engine) -> dict[str, Tensor]:
    """Logits [rows, V] on the CPU, by what they were computed for."""
    scenes: dict[str, Callable[[Engine], list[Tensor]]] = {
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


def refusals(engine: Engine) -> dict[str, bool]:
    """What is to be refused, and whether it was."""
    return {
        "a session beyond the budget is refused": _refuses_a_session(engine),
        "a token beyond the vocabulary is refused": _refuses_a_token(engine),
    }


def _text(length: int, vocab: int, seed: int) -> list[int]:
    drawn = random.Random(f"{length}/{seed}")
    return [drawn.randrange(vocab) for _ in range(length)]


def _fed(engine: Engine, texts: Sequence[Sequence[int]]) -> list[KVCache]:
    """A cache for each text, filled in one step."""
    caches = [engine.new_cache(len(text) + 64) for text in texts]
    engine.forward(
        [Segment(cache, text, None, len(text)) for cache, text in zip(caches, texts, strict=True)]
    )
    return caches


def _freed(caches: Sequence[KVCache]) -> None:
    for cache in caches:
        cache.free()


def _texts(engine: Engine) -> list[list[int]]:
    return [_text(length, engine.vocab_size, place) for place, length in enumerate(LENGTHS)]


def _chunks(engine: Engine) -> list[Tensor]:
    text = _text(4 * PAGE + 7, engine.vocab_size, 1)
    cache, found = engine.new_cache(len(text)), []
    for start in range(0, len(text), 77):
        found += engine.forward([Segment(cache, text[start : start + 77])])
    cache.free()
    return found


def _crowd(engine: Engine) -> list[Tensor]:
    caches, found = _fed(engine, _texts(engine)), []
    for step in range(STEPS):
        found += engine.forward([Segment(cache, [step + 5]) for cache in caches])
    _freed(caches)
    return found


def _blocks(engine: Engine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    sizes = (1, 2, 5, 17, 33, 40)
    found = engine.forward(
        [
            Segment(cache, _text(size, engine.vocab_size, 7))
            for cache, size in zip(caches, sizes, strict=True)
        ]
    )
    _freed(caches)
    return found


def _rolled_back(engine: Engine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    for cache in caches:
        cache.rollback(cache.length - 2)
    found = engine.forward([Segment(cache, [9, 8, 7, 6]) for cache in caches])
    _freed(caches)
    return found


def _trees(engine: Engine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine))
    parents = [-1, -1, 0, 1, 1, 4]
    nodes = _text(len(parents), engine.vocab_size, 3)
    found = engine.forward([Segment(cache, nodes, parents) for cache in caches])
    for cache, text in zip(caches, _texts(engine), strict=True):
        cache.keep_path(len(text), [1, 4, 5])
    found += engine.forward([Segment(cache, [11]) for cache in caches])
    _freed(caches)
    return found


def _copied(engine: Engine) -> list[Tensor]:
    caches = _fed(engine, _texts(engine)[-2:])
    branches = [cache.fork(cache.length + 8) for cache in caches]
    begun = cast("BudgetedCache", engine.new_cache(200))
    begun.copy_prefix(cast("BudgetedCache", caches[-1]), PAGE + 3)
    every = [*caches, *branches, begun]
    found = engine.forward([Segment(cache, [place, 5]) for place, cache in enumerate(every)])
    _freed(every)
    return found


def _refuses_a_session(engine: Engine) -> bool:
    try:
        engine.new_cache(CAPACITY + 1).free()
    except Overloaded:
        return engine.kv_tokens_used == 0
    return False


def _refuses_a_token(engine: Engine) -> bool:
    cache = engine.new_cache(1)
    try:
        engine.forward([Segment(cache, [engine.vocab_size])])
    except ValueError:
        return cache.length == 0
    finally:
        cache.free()
    return False
