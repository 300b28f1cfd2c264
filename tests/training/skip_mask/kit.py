"""A search small enough for a test, and a clock that only moves when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from services.training.options import SkipMaskOptions
from services.training.skip_mask.figures import MaskStats


def small(target: Path, out: Path, **changed: object) -> SkipMaskOptions:
    """Options of a search that takes seconds."""
    given = {"num_prompts": 2, "prompt_tokens": 150, "tokens": 6, "trials": 5}
    given |= {"max_draft": 3, "threshold": 0.1, "threads": 1}
    return replace(SkipMaskOptions(str(target), out, **given), **changed)


def costing(cost: float) -> MaskStats:
    """Figures of a mask with this cost."""
    return MaskStats(
        verified=1, drafted=1, rounds=1, draft_seconds=cost, plain_steps=1, plain_seconds=1.0
    )


class TickingEngine:
    """An engine whose clock moves by 1 s per whole forward, less by what a mask skips."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.now = engine, 0.0
        self.calls: list[tuple[int, float]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    def clock(self) -> float:
        return self.now

    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list:
        spent = 1.0 if skip is None else 1.0 - skip.share
        self.now += spent
        self.calls.append((len(segments[0].token_ids), spent))
        return self.engine.forward(segments, skip)
