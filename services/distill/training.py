"""The optimisation: a student follows its target's laws, and can be stopped at any time.

    <folder>/checkpoint.pt     parameters, optimizer and place in the data, replaced as a whole

AdamW with a short warm-up and a linear way down. Everything random comes from the
plan's seed and the epoch, so that a run that was stopped goes on as it would have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from services.common.engine.student import Student
from services.distill.batches import Batch, Collator, epoch
from services.distill.learning import Score, law_logits, loss_of, score_of
from services.distill.texts import Text

_CHECKPOINT_S = 45.0
_POINTS = 24
_LOWEST_RATE = 0.03
_LARGEST_GRADIENT = 1.0
_EVALUATION_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a student is trained.

    `positions`: laws to see, epochs counted in. `batch_positions`: laws per step.
    `warmup_steps`: steps until `learning_rate` is reached; it falls linearly from there.
    `variation`: weight of total variation beside KL (see `learning.loss_of`).
    """

    positions: int
    batch_positions: int = 768
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    variation: float = 0.75
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out acceptance and greedy agreement after `positions` laws and `seconds` of training."""

    positions: int
    seconds: float
    acceptance: float
    greedy: float


@torch.inference_mode()
def evaluate(student: Student, texts: Sequence[Text]) -> Score:
    """The student's score on texts."""
    collate = Collator(student.head_ids, _vocab_size(student))
    score = Score()
    for group in epoch(texts, _EVALUATION_POSITIONS, seed=0):
        batch = collate(group).to(student.model.device)
        score += score_of(law_logits(student, batch), batch)
    return score


class Trainer:
    """Trains a student in place; goes on from the checkpoint in `folder` if there is one."""

    def __init__(
        self,
        student: Student,
        plan: TrainingPlan,
        train: Sequence[Text],
        held: Sequence[Text],
        folder: Path,
    ) -> None:
        """Read the checkpoint, or measure the untrained student."""
        self.positions = 0
        self.curve: list[Point] = []
        self._student, self._plan = student, plan
        self._train, self._held = train, held
        self._checkpoint = folder / "checkpoint.pt"
        self._collate = Collator(student.head_ids, _vocab_size(student))
        self._own = student.own()
        self._optimizer = torch.optim.AdamW(
            self._own.values(),
            lr=plan.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )
        self._epoch, self._batch, self._steps = 0, 0, 0
        self._seconds = 0.0
        self._saved_at = time.monotonic()
        if self._checkpoint.exists():
            self._resume()
        else:
            self._measure()

    def run(self) -> Iterator[int]:
        """Take one step after the other; yields the positions seen so far."""
        for batch in self._batches():
            if self.positions >= self._plan.positions:
                break
            began = time.monotonic()
            self._step(batch)
            self._seconds += time.monotonic() - began
            self._batch += 1
            if self._due():
                self._measure()
            if time.monotonic() - self._saved_at > _CHECKPOINT_S:
                self.checkpoint()
            yield self.positions
        if self.curve[-1].positions < self.positions:
            self._measure()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write everything that is needed to go on, whole or not at all."""
        state = {
            "own": {name: p.detach() for name, p in self._own.items()},
            "optimizer": self._optimizer.state_dict(),
            "place": (self._epoch, self._batch, self._steps, self.positions, self._seconds),
            "curve": [astuple(point) for point in self.curve],
        }
        scratch = self._checkpoint.with_suffix(".partial")
        torch.save(state, scratch)
        os.replace(scratch, self._checkpoint)
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        state: dict[str, Any] = torch.load(
            self._checkpoint, map_location=self._student.model.device, weights_only=True
        )
        with torch.no_grad():
            for name, parameter in self._own.items():
                parameter.copy_(state["own"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._epoch, self._batch, self._steps, self.positions, self._seconds = state["place"]
        self.curve = [Point(*point) for point in state["curve"]]

    def _batches(self) -> Iterator[Batch]:
        """Batches from where the training stands, epoch after epoch."""
        device = self._student.model.device
        while True:
            groups = epoch(self._train, self._plan.batch_positions, self._seed())
            for group in list(groups)[self._batch :]:
                yield self._collate(group).to(device)
            self._epoch, self._batch = self._epoch + 1, 0

    def _seed(self) -> int:
        # Epochs use pairs of numbers: one for texts, the next for batches.
        return self._plan.seed * 1_000_003 + 2 * self._epoch

    def _step(self, batch: Batch) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        logits = law_logits(self._student, batch)
        loss = loss_of(logits, batch, self._plan.variation)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._own.values(), _LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        self.positions += batch.positions

    def _rate(self) -> float:
        plan = self._plan
        warm = min(1.0, (self._steps + 1) / plan.warmup_steps)
        left = max(0.0, 1.0 - self.positions / plan.positions)
        return plan.learning_rate * warm * max(_LOWEST_RATE, left)

    def _due(self) -> bool:
        """Whether a point of the curve is due: closer together at the beginning."""
        last = self.curve[-1].positions
        gap = min(max(last // 2, self._plan.positions // 256), self._plan.positions // _POINTS)
        return self.positions - last >= max(1, gap)

    def _measure(self) -> None:
        score = evaluate(self._student, self._held)
        self.curve.append(Point(self.positions, self._seconds, score.acceptance, score.greedy))


def _vocab_size(student: Student) -> int:
    size: int = student.model.config.get_text_config().vocab_size
    return size
