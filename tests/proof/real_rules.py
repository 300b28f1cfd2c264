"""The real rejection rules, enumerated: every outcome of a block with its probability.

A rule is asked again and again, its uniforms just below and just above the thresholds
worked out by hand. So a threshold that is off by more than 1e-12 gives a fate twice
or not at all, and the law of the text goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import torch

from services.contract.types import DraftTree, VerifyMode
from services.engine.noise import Stream
from services.engine.sampling import draw
from services.verifier.rules import Outcome, Proposed, judge
from tests.proof.laws import VOCAB, Fate, LawOf, Text, one_hot, target, thresholds

EDGE = 2.0**-40
Draw = tuple[Stream, int, int]
"""(stream, row, candidate)."""


Known = dict[Draw, float]


@dataclass(frozen=True)
class RealRule:
    """What the real rules make of chains after a text.

    They are given the target's laws as `told`; thresholds are worked out from `law`, which
    must be the same.
    """

    law: LawOf = target
    told: LawOf = target

    def __call__(self, text: Text, tree: DraftTree, mode: VerifyMode) -> tuple[Fate, ...]:
        """Every outcome of one chain."""
        return _fates(self, text, tree, mode)

    def explore(
        self,
        text: Text,
        tree: DraftTree,
        mode: VerifyMode,
        accept: list[float],
        known: Known,
        weight: float,
    ) -> Iterator[Fate]:
        """Ask the rule; where it wants a number that is not known, try each that matters."""
        outcome, missing = self._ask(text, tree, mode, known)
        if missing is None:
            yield _fate(outcome, known, weight)
            return
        stream, row, _ = missing
        if stream is Stream.ACCEPT:
            choices = _two_sides(accept[row])
        else:
            choices = _one_for_each_token(self.law(text + tree.token_ids[:row]))
        for number, chance in choices:
            more = {**known, missing: number}
            yield from self.explore(text, tree, mode, accept, more, weight * chance)

    def _ask(
        self, text: Text, tree: DraftTree, mode: VerifyMode, known: Known
    ) -> tuple[Outcome, Draw | None]:
        missing: list[Draw] = []

        def uniform(stream: Stream, row: int, candidate: int) -> float:
            if (stream, row, candidate) not in known:
                missing.append((stream, row, candidate))
            return known.get((stream, row, candidate), 0.5)

        laws = [self.told(text + tree.token_ids[:row]) for row in range(len(tree) + 1)]
        log_p = torch.tensor(laws, dtype=torch.float64).log()
        [outcome] = judge([Proposed(tree, log_p, uniform, mode)])
        return outcome, missing[0] if missing else None


judged = RealRule()


@cache
def _fates(rule: RealRule, text: Text, tree: DraftTree, mode: VerifyMode) -> tuple[Fate, ...]:
    accept, _ = thresholds(text, tree, mode, rule.law)
    return tuple(rule.explore(text, tree, mode, accept, {}, 1.0))


def _two_sides(h: float) -> Iterator[tuple[float, float]]:
    if h > 0:
        yield h * (1 - EDGE), h
    if h < 1:
        yield h + (1 - h) * EDGE, 1 - h


def _one_for_each_token(law: tuple[float, ...]) -> Iterator[tuple[float, float]]:
    for below, mass in zip(accumulate(law, initial=0.0), law, strict=False):
        if mass > 0:
            yield below + mass * EDGE, mass


def _fate(outcome: Outcome, known: Known, weight: float) -> Fate:
    """The token after is drawn with a number of its own, unless that was used already."""
    law = outcome.law.tolist()
    if (used := known.get((*outcome.final, 0))) is not None:
        law = one_hot(draw(outcome.law[None], [used])[0])
    assert len(law) == VOCAB
    return Fate(weight, len(outcome.path), outcome.all_accepted, tuple(law))
