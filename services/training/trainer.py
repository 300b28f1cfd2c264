"""The optimisation: a learner fits its target's distributions, and can stop at any time.

    <folder>/checkpoint.pt     parameters, optimizer and place in the data, replaced as a whole

AdamW with a short warm-up and a linear decay. Everything random comes from the plan's
seed and the epoch, so that a resumed run goes on as if it had not been stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from services.runtime.atomic_file import replacing
from services.training.learning import Score
from services.training.material import Material
from services.training.reporting import Reporter
from services.training.texts import Text

_CHECKPOINT_S = 45.0
_LOWEST_RATE = 0.03
_LARGEST_GRADIENT = 1.0
#: Texts are sorted by length within windows of this many batches: texts of one step are alike.
_WINDOW = 16


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a learner is trained.

    `positions`: distributions to see, epochs counted in. `batch_positions`: distributions per step.
    `warmup_steps`: steps until `learning_rate` is reached; it falls linearly from there.
    `points`: about how many points the curve has after its beginning. `point_laws`: held-out
    distributions that each of them is measured with.
    """

    positions: int
    batch_positions: int
    learning_rate: float
    warmup_steps: int = 20
    seed: int = 0
    points: int = 24
    point_laws: int = 4000


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

    def scores(self, texts: Sequence[Text]) -> Sequence[Score]:
        """How well each draft step does on texts, given that the tokens before were right."""


def train(
    learner: Learner, plan: TrainingPlan, material: Material, folder: Path, reporter: Reporter
) -> list[Point]:
    """Train a learner in place; the curve, from its untrained start.

    Goes on from the checkpoint in `folder` if there is one. What `reporter` raises stops it, with
    a checkpoint.
    """
    trainer = Trainer(learner, plan, material, folder)
    reporter.stage("training", plan.positions, trainer.positions)
    for positions in trainer.run():
        try:
            reporter.advance(min(positions, plan.positions), _figures(trainer.curve[-1]))
        except BaseException:
            # Between two steps all is consistent; an error within one keeps the last checkpoint.
            trainer.checkpoint()
            raise
    return trainer.curve


def _figures(point: Point) -> str:
    return f"held out: acceptance {point.acceptance:.3f}, greedy {point.greedy:.3f}"


class Trainer:
    """A learner, its optimizer, and how far they are."""

    def __init__(
        self, learner: Learner, plan: TrainingPlan, material: Material, folder: Path
    ) -> None:
        """Read the checkpoint, or measure the untrained learner."""
        self.positions = 0
        self.curve: list[Point] = []
        self._learner, self._plan = learner, plan
        self._train = material.train
        self._held = beginning_of(material.held, plan.point_laws)
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
        score = sum(self._learner.scores(self._held), Score())
        self.curve.append(Point(self.positions, self._seconds, score.acceptance, score.greedy))


def epoch(texts: Sequence[Text], positions: int, seed: int) -> Iterator[Sequence[Text]]:
    """All texts once, in batches of about `positions` distributions, shuffled by `seed`."""
    order = np.random.default_rng(seed).permutation(len(texts))
    sizes = np.cumsum([len(texts[i].prefixes) for i in order])
    window = np.searchsorted(
        sizes, np.arange(1, sizes[-1] // (positions * _WINDOW) + 1) * positions * _WINDOW
    )
    batches = [
        batch
        for part in np.split(order, window)
        if len(part)
        for batch in _alike([texts[i] for i in part], positions)
    ]
    for i in np.random.default_rng(seed + 1).permutation(len(batches)):
        yield batches[i]


def _alike(texts: Sequence[Text], positions: int) -> Iterator[Sequence[Text]]:
    """The texts by length, cut whenever `positions` distributions are together."""
    batch: list[Text] = []
    for text in sorted(texts, key=lambda text: len(text.token_ids)):
        batch.append(text)
        if sum(len(one.prefixes) for one in batch) >= positions:
            yield batch
            batch = []
    if batch:
        yield batch


def _laws(text: Text) -> int:
    return len(text.prefixes)


def beginning_of(
    texts: Sequence[Text], enough: int, size: Callable[[Text], int] = _laws
) -> Sequence[Text]:
    """The first texts whose sizes, left out their distributions, come to `enough`, or all."""
    count = total = 0
    while count < len(texts) and total < enough:
        total += size(texts[count])
        count += 1
    return texts[:count]
