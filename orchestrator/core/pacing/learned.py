"""What rounds teach: how often drafts hit, and what rounds and drafts cost. Pure values."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from orchestrator.core.pacing.costs import RoundCosts, blend
from orchestrator.core.pacing.policy import FinishedRound
from orchestrator.core.pacing.steps import Told
from services.scheduling.step_time import KEEP

PRIOR_HITS = 0.5
PRIOR_WEIGHT = 1.0
SEED_WEIGHT = 6.0
"""Most rounds that another session's observations count for."""
FIRST_HOP_MS = 2.0
LONGEST_HOP_MS = 1_000.0
CERTAIN = 1e9
LEAST = 1e-3


class Share(NamedTuple):
    """Discounted hits among discounted tries."""

    hits: float = 0.0
    tries: float = 0.0

    def add(self, hits: int, tries: int) -> Share:
        """The share with a round's hits and tries."""
        if tries == 0:
            return self
        return Share(KEEP * self.hits + hits, KEEP * self.tries + tries)

    def rate(self, prior: float) -> float:
        """Between 0 and 1; `prior` counts as a few tries."""
        return (self.hits + PRIOR_WEIGHT * prior) / (self.tries + PRIOR_WEIGHT)

    def drawn(self, prior: float, source: Random) -> Share:
        """A share whose rate is drawn from its posterior (a beta distribution)."""
        hits = self.hits + PRIOR_WEIGHT * prior
        misses = self.tries + PRIOR_WEIGHT - hits
        rate = source.betavariate(max(hits, LEAST), max(misses, LEAST))
        return Share(rate * CERTAIN, CERTAIN)

    def capped(self, tries: float) -> Share:
        """The same rate with at most this weight."""
        kept = min(1.0, tries / self.tries) if self.tries else 1.0
        return Share(kept * self.hits, kept * self.tries)

    def joined(self, newer: Share) -> Share:
        """Both, the newer one with twice the weight."""
        return Share(self.hits / 2 + newer.hits, self.tries / 2 + newer.tries)


class Learned(NamedTuple):
    """What a session, or all sessions before it, learned about one kind of drafts.

    `first` and `later`: how often a block's first draft token is accepted, and one whose
    predecessor was. In a tree a level is a hit if any candidate is, and `later` is how
    often the trunk goes on; so E[tokens] has one form for both. `guess`: how often the
    target's own token is the drafter's next one; with exact matching (`exact`) that
    counts as acceptance.
    """

    exact: bool = True
    first: Share = Share()
    later: Share = Share()
    guess: Share = Share()
    costs: RoundCosts = RoundCosts()
    draft_ms: float = 0.0
    hop_ms: float = FIRST_HOP_MS

    def add(self, outcome: FinishedRound) -> Learned:
        """With one more round in which the drafter worked."""
        draft_ms, hop_ms = self._times(outcome)
        return Learned(self.exact, *self._hits(outcome), self.costs.add(outcome), draft_ms, hop_ms)

    def _hits(self, outcome: FinishedRound) -> tuple[Share, Share, Share]:
        """`first`, `later` and `guess` after the round."""
        first, later, guess = self.first, self.later, self.guess
        if outcome.draft_tokens:
            tree = outcome.levels is not None
            first = first.add(*(_level_hits(outcome) if tree else _first_hits(outcome)))
            later = later.add(*(_trunk_hits(outcome) if tree else _later_hits(outcome)))
        if outcome.guessed is None:
            return first, later, guess
        hit = int(outcome.guessed)
        if not self.exact:
            return first, later, guess.add(hit, 1)
        if outcome.draft_tokens:
            return first, later.add(hit, 1), guess
        return first.add(hit, 1), later, guess

    def _times(self, outcome: FinishedRound) -> tuple[float, float]:
        """`draft_ms` and `hop_ms` after the round."""
        per_level, depth = self.draft_ms, outcome.depth
        if depth and outcome.draft_ms:
            per_level = blend(self.draft_ms, outcome.draft_ms / depth)
        elif outcome.tail_ms:
            # Drafting time is known even if nothing was sent.
            per_level = blend(self.draft_ms, outcome.tail_ms)
        # The wait for a whole block, less its drafting, is the round trip.
        hop = outcome.waited_ms - per_level * max(1, depth)
        if outcome.waited_ms == 0.0 or hop < -0.5 * per_level:
            return per_level, self.hop_ms
        return per_level, blend(self.hop_ms, min(max(0.0, hop), LONGEST_HOP_MS))

    def weakened(self, weight: float = SEED_WEIGHT) -> Learned:
        """The same rates and times, of limited weight."""
        return self._replace(
            first=self.first.capped(weight),
            later=self.later.capped(weight),
            guess=self.guess.capped(weight),
            costs=self.costs.capped(weight),
        )

    def informed(self, told: Told) -> Learned:
        """With what was told of steps."""
        return self._replace(costs=self.costs.informed(told))

    def without_hits(self) -> Learned:
        """The same costs, without the hits."""
        return self._replace(first=Share(), later=Share(), guess=Share())

    def with_hits_of(self, other: Learned) -> Learned:
        """The same costs, with another one's hits."""
        return self._replace(first=other.first, later=other.later, guess=other.guess)

    def joined(self, newer: Learned) -> Learned:
        """What both learned; times are those of the newer one, if it has them."""
        return newer._replace(
            first=self.first.joined(newer.first),
            later=self.later.joined(newer.later),
            guess=self.guess.joined(newer.guess),
            costs=newer.costs if newer.costs.known else self.costs,
            draft_ms=newer.draft_ms or self.draft_ms,
        )

    def drawn(self, source: Random) -> Learned:
        """The same costs with rates drawn from their posterior (Thompson sampling).

        A token after a rejected one was not observed and is no failure, so rejections do
        not bias the rates downwards.
        """
        return self._replace(
            first=self.first.drawn(PRIOR_HITS, source),
            later=self.later.drawn(self.first_rate, source),
        )

    @property
    def first_rate(self) -> float:
        """Chance that the first draft token (any candidate of the first level) is accepted."""
        return self.first.rate(PRIOR_HITS)

    @property
    def later_rate(self) -> float:
        """Chance that one is accepted whose predecessor was."""
        return self.later.rate(self.first_rate)

    @property
    def guess_rate(self) -> float:
        """Chance that the target's own token is the drafter's next one."""
        return self.first_rate if self.exact else self.guess.rate(0.5 * self.first_rate)


def _first_hits(outcome: FinishedRound) -> tuple[int, int]:
    return min(1, outcome.accepted_tokens), 1


def _later_hits(outcome: FinishedRound) -> tuple[int, int]:
    hits = max(0, outcome.accepted_tokens - 1)
    missed = 0 < outcome.accepted_tokens < outcome.draft_tokens
    return hits, hits + missed


def _level_hits(outcome: FinishedRound) -> tuple[int, int]:
    hits = outcome.accepted_tokens
    return hits, hits + (not outcome.to_leaf)


def _trunk_hits(outcome: FinishedRound) -> tuple[int, int]:
    """At the last level a leaf of the trunk looks like one beside it."""
    accepted = outcome.accepted_tokens
    beside = outcome.to_leaf and accepted < outcome.depth
    hits = max(0, accepted - 1) if outcome.to_leaf else accepted
    return hits, hits + (beside or not outcome.to_leaf)
