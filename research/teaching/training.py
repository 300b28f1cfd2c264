"""Heads that learn the same batches, for as long as they are given."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from research.command import say
from research.teaching.lessons import Lesson, lesson_of, loss_of, scores_of, widened
from research.teaching.pool import Pool, Shelf
from research.teaching.target import Target
from research.teaching.writing import Wave
from services.training.distill.learning import Score
from services.training.eagle.head import EagleHead

WEIGHTS = (1.0, 0.8, 0.6)
"""Of the draft steps."""
_WARMUP = 100
_LARGEST_GRADIENT = 1.0
_LOOK_S = 60.0
_LOOK_STEPS = 50
_JUDGED_TEXTS = 32


class Trainee:
    """A head with so many units in its MLP, and its optimiser."""

    def __init__(
        self, head: EagleHead, known: Tensor, ids: Tensor, target: Target, inner: int
    ) -> None:
        self.inner = inner
        self.head = widened(head, known, ids, target.outputs.float(), inner)
        self._optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )

    def learn(self, lesson: Lesson, rate: float) -> Tensor:
        """Take one step; returns the loss."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(lesson.states.device.type, torch.bfloat16):
            loss = loss_of(self.head, lesson, WEIGHTS)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def train(
    trainees: list[Trainee],
    target: Target,
    ids: Tensor,
    pool: Pool,
    kinds: Mapping[str, Pool | Wave],
    asked: argparse.Namespace,
    keep: Callable[[], None],
) -> dict[str, Any]:
    """Train them all for `asked.training_s`, judging included, one step at least; what was seen.

    Whenever they were judged `keep` stores them, so that a run that is cut off leaves something.
    Raises SystemExit where a loss is not finite.
    """
    layers = trainees[0].head.shape.layers
    curve: list[dict[str, Any]] = []
    steps = positions = 0
    began = looked = time.monotonic()

    def look() -> None:
        for one in trainees:
            found = judged(one.head, target, ids, kinds)
            seconds = time.monotonic() - began
            about = {"inner": one.inner, "positions": positions, "seconds": round(seconds, 1)}
            curve.append(about | found)
            say(f"{one.inner} units, {positions} positions, {seconds:.0f} s: {_told(found)}")
        keep()

    look()
    for tokens, starts, ends in Shelf(pool, asked.seed).batches(asked.tokens):
        done = (time.monotonic() - began) / asked.training_s
        if done >= 1.0 and steps:
            break
        lesson = lesson_of(target, layers, ids, tokens, starts, ends)
        losses = [one.learn(lesson, asked.rate * _share(steps, min(1.0, done))) for one in trainees]
        steps, positions = steps + 1, positions + len(lesson.rows)
        if steps % _LOOK_STEPS == 0 and not all(bool(loss.isfinite()) for loss in losses):
            raise SystemExit(f"a loss is not finite after {steps} steps")
        if time.monotonic() - looked > _LOOK_S:
            look()
            looked = time.monotonic()
    look()
    return {"steps": steps, "positions": positions, "curve": curve}


def _share(steps: int, done: float) -> float:
    """Of the highest rate: warmed up, then along half a cosine."""
    return min(1.0, (steps + 1) / _WARMUP) * (0.5 + 0.5 * math.cos(math.pi * done))


def judged(
    head: EagleHead, target: Target, ids: Tensor, kinds: Mapping[str, Pool | Wave]
) -> dict[str, Any]:
    """Acceptance and greedy agreement of each step, on each kind of texts."""
    return {kind: _score(head, target, ids, texts) for kind, texts in kinds.items()}


@torch.no_grad()
def _score(
    head: EagleHead, target: Target, ids: Tensor, texts: Wave | Pool
) -> dict[str, list[float]]:
    totals = [Score()] * len(WEIGHTS)
    good = texts.ends > texts.starts
    tokens, starts, ends = texts.tokens[good], texts.starts[good], texts.ends[good]
    for begin in range(0, len(ends), _JUDGED_TEXTS):
        some = slice(begin, begin + _JUDGED_TEXTS)
        longest = int(ends[some].max())
        lesson = lesson_of(
            target, head.shape.layers, ids, tokens[some, :longest].long(), starts[some], ends[some]
        )
        with torch.autocast(tokens.device.type, torch.bfloat16):
            scores = scores_of(head, lesson, len(WEIGHTS))
        totals = [one + other for one, other in zip(totals, scores, strict=True)]
    return {
        "acceptance": [round(score.acceptance, 4) for score in totals],
        "greedy": [round(score.greedy, 4) for score in totals],
    }


def _told(found: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{kind} "
        + " ".join(
            f"{one:.3f}/{other:.3f}"
            for one, other in zip(of["acceptance"], of["greedy"], strict=True)
        )
        for kind, of in found.items()
    )
