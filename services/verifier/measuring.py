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

from services.contract.types import (
    SessionFailed,
    StepTime,
    Verdict,
    VerifierEvent,
    Verify,
    VerifyMode,
)
from services.engine.port import Engine
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions
from services.verifier.warming import finish, made_up_draft, made_up_opening

ROWS = (1, 8, 4, 2, 16, 6, 12, 3)
"""In the order of what they tell: where a step takes seconds, two of them are measured."""
SWEEPS = 6
STEADY = 0.95
"""A time that falls to no less of itself stays as it is."""
MOST_S = 1.0
"""No step begins later."""
PROMPT = 16
_ROOM = SWEEPS * sum(ROWS)
_MODE = VerifyMode.GREEDY

_log = logging.getLogger(__name__)


def measured(
    engine: Engine, clock: Callable[[], float] = time.perf_counter
) -> tuple[StepTime, ...]:
    """Times of a step of one session, by rows, ascending; none of what fails.

    `clock`: seconds. What the engine held is free again.
    """
    trial = _Trial(engine, clock)
    until = clock() + MOST_S
    least: dict[int, float] = {}
    for _ in range(SWEEPS):
        before = least.copy()
        for rows in ROWS:
            if len(least) > 1 and clock() > until:
                break
            if (took := trial.step(rows)) is not None:
                least[rows] = min(took, least.get(rows, math.inf))
        if before and all(least[rows] >= STEADY * before.get(rows, math.inf) for rows in least):
            break
    trial.end()
    return tuple(StepTime(rows, least[rows]) for rows in sorted(least))


class _Trial:
    """A session of a verifier on this engine."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        options = VerifierOptions(gather_ms=0.0, prefix_cache_tokens=0, clock=clock)
        self._engine = engine
        self._core = VerifierCore(engine, emit=self._hear, worker_id="measuring", options=options)
        self._rounds = self._length = 0
        self._took: float | None = None
        self._failed = False
        self._core.handle(0, made_up_opening(engine, _MODE, PROMPT, _ROOM))
        finish(self._core)

    def step(self, rows: int) -> float | None:
        """Milliseconds of a step of so many rows; None where it fails."""
        self._took = None
        self._rounds += 1
        draft = made_up_draft(self._engine, _MODE, rows - 1)
        if not self._failed:
            self._core.handle(0, Verify(_MODE.name, 1, self._rounds, self._length, draft))
            finish(self._core)
        return self._took

    def end(self) -> None:
        """Free what it held."""
        self._core.drop_link(0)

    def _hear(self, _: int, event: VerifierEvent) -> None:
        match event:
            case Verdict():
                self._took = event.verify_ms
                self._length = event.base_len + len(event.token_ids)
            case SessionFailed():
                self._failed = True
                _log.info("steps were not measured: %s", event.message)
