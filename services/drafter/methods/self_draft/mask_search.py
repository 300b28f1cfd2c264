"""The search for a better mask while texts are written: SWIFT. Pure: no model, no clock.

Xia et al., 2410.06916. A mask's score is the share of a window of committed tokens that
the skipping model's argmax gives. Rules:

1.  A candidate may skip the sub-layers of all layers but the first and the last, and
    those of these two that the starting mask skips. It skips `share` of them.
2.  It is a random subset; every 25th is guided by the scores so far.
3.  It is kept if it scores more than the best mask on the same window. On another window
    the best one is scored first. (The published code compares scores of different
    windows, so an easy one keeps its mask for good.)
4.  The search ends after 300 candidates without a better one, or with a score above
    0.95.

A guided candidate holds the sub-layers with the greatest upper confidence bounds: over
the candidates that skipped one, the mean of their gains (score less the one that their
window began with) and 2.5 standard errors. So each sub-layer is judged for itself, as
if gains added up. The paper fits a Gaussian process to whole masks instead, with the
same 2.5.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import chain
from math import inf, sqrt
from statistics import fmean, pstdev

from services.contract.errors import StartError
from services.engine.skip_mask import SkipMask

_CONFIDENCE = 2.5


@dataclass(frozen=True, slots=True)
class SearchRules:
    """`share` of the sub-layers is skipped; the rest as published."""

    share: float = 0.45
    guided_every: int = 25
    patience: int = 300
    enough: float = 0.95


class MaskSearch:
    """The best mask so far, and which one to score next. The same seed, the same search.

    Use: `look_at` the window, score what `propose` gives on it, `note` the score. Raises
    StartError for a share that makes no candidate.
    """

    def __init__(self, start: SkipMask, rules: SearchRules | None = None, seed: int = 0) -> None:
        self._rules = rules or SearchRules()
        self._layers = start.layers
        self._choices = _choices(start)
        self._size = int(self._rules.share * len(self._choices))
        if not self._size:
            raise StartError(
                f"skip_share: {self._rules.share} of the {len(self._choices)} sub-layers "
                "that may be skipped is none"
            )
        self._random = random.Random(seed)
        self._gains: dict[int, list[float]] = {choice: [] for choice in self._choices}
        self._window: Hashable = None
        self._level = 0.0
        """What the window began with."""
        self._stale = 0
        """Candidates since the last better one."""
        self.best = start
        self.score: float | None = None
        """Of the best mask on the window; None before it is scored there."""
        self.candidates = 0
        """Scored so far."""
        self.ended = False

    def look_at(self, window: Hashable) -> None:
        """Scores are those of this window from now on."""
        if window != self._window:
            self._window, self.score = window, None

    def propose(self) -> SkipMask:
        """What to score next: the best mask on a window that is new, else a candidate."""
        if self.score is None:
            return self.best
        guided = (self.candidates + 1) % self._rules.guided_every == 0
        return self._mask(self._guided() if guided else self._sample(self._size))

    def note(self, mask: SkipMask, score: float) -> bool:
        """Take in the score of what was proposed; whether `best` is another mask now."""
        better = self.score is not None and score > self.score
        if self.score is None:
            self._level = score
        else:
            self._learn(mask, score)
            self._stale = 0 if better else self._stale + 1
        if better:
            self.best = mask
        self.score = score if self.score is None or better else self.score
        self.ended = self._stale >= self._rules.patience or self.score > self._rules.enough
        return better

    def _learn(self, mask: SkipMask, score: float) -> None:
        self.candidates += 1
        for choice in _numbers(mask):
            self._gains[choice].append(score - self._level)

    def _guided(self) -> list[int]:
        """The greatest bounds, in random order where they are equal."""
        spread = pstdev(list(chain.from_iterable(self._gains.values())) or [0.0])
        ranked = self._sample(len(self._choices))
        ranked.sort(key=lambda choice: _bound(self._gains[choice], spread), reverse=True)
        return ranked[: self._size]

    def _sample(self, size: int) -> list[int]:
        return self._random.sample(self._choices, size)

    def _mask(self, chosen: list[int]) -> SkipMask:
        layers = self._layers
        attention = (one for one in chosen if one < layers)
        return SkipMask.of(layers, attention, (one - layers for one in chosen if one >= layers))


def _choices(start: SkipMask) -> list[int]:
    """Sub-layers that may be skipped, as numbers: attentions, then MLPs."""
    layers = start.layers
    inner = (kind + layer for kind in (0, layers) for layer in range(1, layers - 1))
    return sorted({*inner, *_numbers(start)})


def _numbers(mask: SkipMask) -> list[int]:
    return [*sorted(mask.attention), *(mask.layers + layer for layer in sorted(mask.mlp))]


def _bound(gains: list[float], spread: float) -> float:
    return fmean(gains) + _CONFIDENCE * spread / sqrt(len(gains)) if gains else inf
