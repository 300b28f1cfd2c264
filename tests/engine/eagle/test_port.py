"""The suite of the port on a head, all of whose texts begin with the same state."""

from __future__ import annotations

from collections.abc import Callable

from services.engine.eagle.cache import EagleCache
from services.engine.eagle.engine import EagleEngine
from services.engine.port import Engine
from tests.engine.eagle.engines import engine
from tests.engine.eagle.kit import make, states
from tests.engine.port_suite import *  # noqa: F403
from tests.engine.port_suite import CAPACITY, CONTEXT

MADE = make(draft_vocab_size=320, shape={"max_position_embeddings": CONTEXT})


class NativeEngine(EagleEngine):
    """Named so for the suite's tolerance: rows depend a little on what is beside them."""

    def new_cache(self, reserve: int) -> EagleCache:
        cache = super().new_cache(reserve)
        cache.anchor(0, states(1, MADE))
        return cache


def head() -> Engine:
    made = engine(MADE, CAPACITY)
    made.__class__ = NativeEngine
    return made


def void() -> Engine:
    """Without any states: all rows are zeros, and take their room all the same."""
    made = engine(MADE, CAPACITY)
    made.__class__ = type("VllmEngine", (EagleEngine,), {})
    return made


ENGINES: list[Callable[[], Engine]] = [head, void]
