"""A worker's process around its real core, on an engine without a model."""

from __future__ import annotations

from typing import Any

import torch

from services.contract.types import Role
from services.drafter.core import DrafterCore
from services.drafter.methods.model.model import ModelDrafter
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions
from tests.fake_engine import FakeEngine, law


class Guessing(FakeEngine):
    """A draft model: its laws are the target's, blurred."""

    def _row(self, text: list[int]) -> torch.Tensor:
        return law(text) + 0.6 * law([*text, -1])


class Process:
    """A worker; it outlives the links to it, unless it dies."""

    def __init__(self, role: Role, name: str) -> None:
        self.role, self.name = role, name
        self.said: list[tuple[int, Any]] = []
        self.core: VerifierCore | DrafterCore = self._verifier()
        if role is Role.DRAFTER:
            self.core = self._drafter()

    def _emit(self, link: int, event: Any) -> None:
        self.said.append((link, event))

    def _verifier(self) -> VerifierCore:
        options = VerifierOptions(clock=lambda: 0.0)
        return VerifierCore(FakeEngine(), emit=self._emit, worker_id=self.name, options=options)

    def _drafter(self) -> DrafterCore:
        methods = {"model": ModelDrafter(Guessing(), step_tokens=64, q_top=6)}
        return DrafterCore(methods, emit=self._emit, worker_id=self.name, clock=lambda: 0)
