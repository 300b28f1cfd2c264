"""What a step takes by its rows, measured where it will run, before the first session comes.

Pacing weighs each draft token's chance against the time of its row. On some CPUs a second row is
nearly free, on others it takes a third of a step. Told before, the first drafts are right at once.

A made-up session verifies blocks of several sizes, in turn, until no size gets faster any more or
the time is over. The least time of each size counts: what else the machine does only adds.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from services.contract.types import StepTime, VerifyMode
from services.engine.port import Engine
from services.verifier.rehearsal import Rehearsal

ROWS = (1, 8, 4, 2, 16, 6, 12, 3)
"""In the order of what they tell: where a step takes seconds, two of them are measured."""
SWEEPS = 6
STEADY = 0.95
"""A time that falls to no less of itself stays as it is."""
MOST_S = 1.0
"""No step begins later."""
PROMPT = 16
_ROOM = SWEEPS * sum(ROWS)
_MODES = (VerifyMode.GREEDY,)

_log = logging.getLogger(__name__)


def measured(
    engine: Engine, clock: Callable[[], float] = time.perf_counter
) -> tuple[StepTime, ...]:
    """Times of a step of one session, by rows, ascending; none of what fails.

    `clock`: seconds. What the engine held is free again.
    """
    rehearsal = Rehearsal(engine, _failed, clock)
    rehearsal.open(_MODES, PROMPT, _ROOM)
    until = clock() + MOST_S
    least: dict[int, float] = {}
    for _ in range(SWEEPS):
        before = least.copy()
        for rows in ROWS:
            if len(least) > 1 and clock() > until:
                break
            if (took := rehearsal.step(_MODES, rows - 1)) is not None:
                least[rows] = min(took, least.get(rows, math.inf))
        if before and all(least[rows] >= STEADY * before.get(rows, math.inf) for rows in least):
            break
    rehearsal.end()
    return tuple(StepTime(rows, least[rows]) for rows in sorted(least))


def _failed(_: VerifyMode, message: str) -> None:
    _log.info("steps were not measured: %s", message)
