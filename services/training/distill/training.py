"""The optimisation: a learner fits its target's distributions, and can stop at any time.

    <folder>/checkpoint.pt     parameters, optimizer and place in the data, replaced as a whole

AdamW with a short warm-up and a linear decay. Everything random comes from the plan's
seed and the epoch, so that a resumed run goes on as if it had not been stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from services.runtime.atomic_file import replacing
from services.training.distill.batches import epoch
from services.training.distill.learning import Score
from services.training.distill.texts import Text
from services.training.reporting import Reporter

_CHECKPOINT_S = 45.0
_LOWEST_RATE = 0.03
_LARGEST_GRADIENT = 1.0


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a student is trained.

    `positions`: distributions to see, epochs counted in. `batch_positions`: distributions per step.
    `warmup_steps`: steps until `learning_rate` is reached; it falls linearly from there.
    `points`: about how many points the curve has after its beginning.
    """

    positions: int
    batch_positions: int = 768
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    seed: int = 0
    points: int = 24


@dataclass(frozen=True, slots=True)
class Point:
    """Held-out acceptance and greedy agreement after `positions` and `seconds` of training."""

    positions: int
    seconds: float
    acceptance: float
    greedy: float


class Learner(Protocol):
    """What is trained: parameters, and how they learn from texts."""

    @property
    def own(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters that are trained."""

    @property
    def device(self) -> torch.device:
        """Where they are."""

    def learn(self, texts: Sequence[Text], seed: int) -> int:
        """Add the gradient of the mean loss over these texts; returns the positions seen.

        What is random in it comes from `seed`.
        """

    def score(self, texts: Sequence[Text]) -> Score:
        """How well they do on texts."""


class Trainer:
    """Trains a learner in place; goes on from the checkpoint in `folder` if there is one."""

    def __init__(
        self,
        learner: Learner,
        plan: TrainingPlan,
        train: Sequence[Text],
        held: Sequence[Text],
        folder: Path,
    ) -> None:
        """Read the checkpoint, or measure the untrained learner."""
        self.positions = 0
        self.curve: list[Point] = []
        self._learner, self._plan = learner, plan
        self._train, self._held = train, held
        self._checkpoint = folder / "checkpoint.pt"
        self._own = learner.own
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

    @property
    def goal(self) -> int:
        """Positions to see."""
        return self._plan.positions

    def run(self) -> Iterator[int]:
        """Take one step after the other; yields the positions seen so far."""
        for texts in self._batches():
            if self.positions >= self._plan.positions:
                break
            began = time.monotonic()
            self._step(texts)
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
        with replacing(self._checkpoint) as scratch:
            torch.save(state, scratch)
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        state: dict[str, Any] = torch.load(
            self._checkpoint, map_location=self._learner.device, weights_only=True
        )
        with torch.no_grad():
            for name, parameter in self._own.items():
                parameter.copy_(state["own"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self._epoch, self._batch, self._steps, self.positions, self._seconds = state["place"]
        self.curve = [Point(*point) for point in state["curve"]]

    def _batches(self) -> Iterator[Sequence[Text]]:
        """Texts of one step after another from where the training stands, epoch after epoch."""
        while True:
            groups = epoch(self._train, self._plan.batch_positions, self._seed())
            yield from list(groups)[self._batch :]
            self._epoch, self._batch = self._epoch + 1, 0

    def _seed(self) -> int:
        # Epochs use pairs of numbers: one for texts, the next for batches.
        return self._plan.seed * 1_000_003 + 2 * self._epoch

    def _step(self, texts: Sequence[Text]) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate()
        self.positions += self._learner.learn(texts, self._seed())
        torch.nn.utils.clip_grad_norm_(self._own.values(), _LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._steps += 1

    def _rate(self) -> float:
        plan = self._plan
        warm = min(1.0, (self._steps + 1) / plan.warmup_steps)
        left = max(0.0, 1.0 - self.positions / plan.positions)
        return plan.learning_rate * warm * max(_LOWEST_RATE, left)

    def _due(self) -> bool:
        """Whether a point of the curve is due: closer together at the beginning."""
        last = self.curve[-1].positions
        even = self._plan.positions // self._plan.points
        gap = min(max(last // 2, even * 3 // 32), even)
        return self.positions - last >= max(1, gap)

    def _measure(self) -> None:
        score = self._learner.score(self._held)
        self.curve.append(Point(self.positions, self._seconds, score.acceptance, score.greedy))


def train(trainer: Trainer, reporter: Reporter) -> None:
    """Run a trainer to its end; what `reporter` raises stops it, with a checkpoint."""
    goal = trainer.goal
    reporter.stage("training", goal, trainer.positions)
    for positions in trainer.run():
        try:
            reporter.advance(min(positions, goal), _figures(trainer.curve[-1]))
        except BaseException:
            # Between two steps all is consistent; an error within one keeps the last checkpoint.
            trainer.checkpoint()
            raise


def _figures(point: Point) -> str:
    return f"held out: acceptance {point.acceptance:.3f}, greedy {point.greedy:.3f}"
