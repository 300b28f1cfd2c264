"""A worker's process around its real core, on an engine without a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from services.contract.types import Role
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.fake_engine import FakeEngine, law
from tests.services.running_bench import Fixed


class Guessing(FakeEngine):
    """A draft model: its laws are the target's, blurred."""

    def _row(self, text: list[int]) -> torch.Tensor:
        return law(text) + 0.6 * law([*text, -1])


class Process:
    """A worker; it outlives the links to it, unless it dies.

    `absorb`: hands in what comes while a step runs.
    """

    def __init__(self, role: Role, name: str, absorb: Callable[[Process], object]) -> None:
        self.role, self.name = role, name
        self.said: list[tuple[int, Any]] = []
        self._absorb = absorb
        self.core: RunningCore | HypothesisCore = self._verifier()
        if role is Role.DRAFTER:
            self.core = self._drafter()

    def _emit(self, link: int, event: Any) -> None:
        self.said.append((link, event))

    def _verifier(self) -> RunningCore:
        return RunningCore(
            FakeEngine(),
            emit=self._emit,
            worker_id=self.name,
            options=VerifierOptions(clock=lambda: 0.0),
            pacing=Fixed(),
            absorb=lambda: self._absorb(self),
        )

    def _drafter(self) -> HypothesisCore:
        methods = {"model": ModelDrafter(Guessing(), step_tokens=64, q_top=6)}
        return HypothesisCore(methods, emit=self._emit, worker_id=self.name, clock=lambda: 0)
