"""Synthetic engines on a clock that only sleeps move."""

from __future__ import annotations

from typing import Any

from services.engine.synthetic.engine import SyntheticEngine, draft_engine, target_engine
from services.engine.synthetic.pacemaker import Pacemaker
from services.engine.synthetic.spec import SyntheticSpec
from services.engine.synthetic.vocabulary import START_ID

PROMPT = (7, 8, 9, START_ID)


class FakeTime:
    """`late`: seconds that every sleep ends too late; `computed`: CPU time of the thread."""

    def __init__(self, late: float = 0.0) -> None:
        self.now, self.late, self.computed = 0.0, late, 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.computed += seconds

    def pacemaker(self, *, whole_steps: bool = True) -> Pacemaker:
        return Pacemaker(
            whole_steps=whole_steps,
            clock=lambda: self.now,
            sleep=self.sleep,
            computed=lambda: self.computed,
        )


def spec(**agreement: Any) -> SyntheticSpec:
    return SyntheticSpec.model_validate(
        {
            "name": "test",
            "verifier": {"plain_ms": 20, "verify_ms": 25, "row_ms": 0.5, "session_ms": 2},
            "drafter": {"draft_ms": 5, "prompt_token_ms": 0.25},
            "agreement": agreement or {"rate": 0.7},
        }
    )


def target(time: FakeTime, **agreement: Any) -> SyntheticEngine:
    return target_engine(spec(**agreement), pacemaker=time.pacemaker())


def drafter(time: FakeTime, **agreement: Any) -> SyntheticEngine:
    return draft_engine(spec(**agreement), pacemaker=time.pacemaker())
