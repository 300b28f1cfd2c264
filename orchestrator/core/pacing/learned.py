"""What rounds teach: how often drafts hit, and what rounds and drafts cost. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core.pacing.baselines import blend
from orchestrator.core.pacing.policy import Outcome

KEEP = 0.95
"""What a round leaves of the weight of those before it: about twenty of them count."""
PRIOR_HITS = 0.5
PRIOR_WEIGHT = 1.0
SEED_WEIGHT = 6.0
"""Most rounds that what another session saw counts for."""
FIRST_HOP_MS = 2.0
LONGEST_HOP_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Share:
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

    def capped(self, tries: float) -> Share:
        """The same rate with at most this weight."""
        kept = min(1.0, tries / self.tries) if self.tries else 1.0
        return Share(kept * self.hits, kept * self.tries)

    def joined(self, newer: Share) -> Share:
        """Both, what is newer with twice the weight."""
        return Share(self.hits / 2 + newer.hits, self.tries / 2 + newer.tries)


STIFFNESS = 2.0
FIRST_SLOPE = 0.04
OUTLIER = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """Milliseconds of a round with n levels of draft tokens: `at(n)` = a + b n, b >= 0.

    Discounted least squares, drawn towards the slope of before: rounds that are
    all of one width say nothing of b, and leave it as it is. A round that takes
    several times what was expected counts as twice as long: one stall does not
    mislead, a change is learned within a few rounds.
    """

    weight: float = 0.0
    mean_n: float = 0.0
    mean_ms: float = 0.0
    # Discounted sums of squares and products around the means.
    spread: float = 0.0
    product: float = 0.0
    slope: float = 0.0

    def add(self, n: int, ms: float) -> Line:
        """The line with one more round."""
        if self.weight == 0.0:
            return Line(1.0, n, ms, slope=FIRST_SLOPE * ms / (1 + FIRST_SLOPE * n))
        ms = min(ms, OUTLIER * self.at(n))
        weight = KEEP * self.weight + 1.0
        off_n, off_ms = n - self.mean_n, ms - self.mean_ms
        old = KEEP * self.weight / weight
        spread = KEEP * self.spread + old * off_n * off_n
        product = KEEP * self.product + old * off_n * off_ms
        slope = (product + STIFFNESS * self.slope) / (spread + STIFFNESS)
        return Line(
            weight,
            self.mean_n + off_n / weight,
            self.mean_ms + off_ms / weight,
            spread,
            product,
            max(0.0, slope),
        )

    def at(self, n: int) -> float:
        """Milliseconds of a round of n levels; never less than a tenth of the mean."""
        return max(self.mean_ms + self.slope * (n - self.mean_n), 0.1 * self.mean_ms)

    def capped(self, weight: float) -> Line:
        """The same line with at most this weight."""
        kept = min(1.0, weight / self.weight) if self.weight else 1.0
        return replace(
            self,
            weight=kept * self.weight,
            spread=kept * self.spread,
            product=kept * self.product,
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """What a session, or all sessions before it, found out about one kind of drafts.

    `first` and `later`: how often the first draft token of a block is accepted, and
    one whose predecessor was. In a tree a level counts as hit if any candidate is,
    and `later` is how often the trunk goes on; so E[tokens] has one form for both.
    `guess`: how often the target's own token is the one that the drafter has next;
    with exact matching (`exact`) that is acceptance, and counts as such.
    """

    exact: bool = True
    first: Share = field(default_factory=Share)
    later: Share = field(default_factory=Share)
    guess: Share = field(default_factory=Share)
    line: Line = field(default_factory=Line)
    draft_ms: float = 0.0
    hop_ms: float = FIRST_HOP_MS

    def add(self, outcome: Outcome) -> Learned:
        """One round more, with the drafter at work."""
        line = self.line.add(outcome.depth, outcome.round_ms)
        return replace(self, line=line)._hits(outcome)._times(outcome)

    def _hits(self, outcome: Outcome) -> Learned:
        first, later = self.first, self.later
        if outcome.draft_tokens:
            tree = outcome.levels is not None
            first = first.add(*(_level_hits(outcome) if tree else _first_hits(outcome)))
            later = later.add(*(_trunk_hits(outcome) if tree else _later_hits(outcome)))
        if outcome.guessed is None:
            return replace(self, first=first, later=later)
        if not self.exact:
            guess = self.guess.add(int(outcome.guessed), 1)
            return replace(self, first=first, later=later, guess=guess)
        if outcome.draft_tokens:
            return replace(self, first=first, later=later.add(int(outcome.guessed), 1))
        return replace(self, first=first.add(int(outcome.guessed), 1), later=later)

    def _times(self, outcome: Outcome) -> Learned:
        per_level = self.draft_ms
        if outcome.depth and outcome.draft_ms:
            per_level = blend(self.draft_ms, outcome.draft_ms / outcome.depth)
        # Beyond drafting, what the wait for a whole block took is the way there and back.
        hop = outcome.waited_ms - per_level * max(1, outcome.depth)
        if outcome.waited_ms == 0.0 or hop < -0.5 * per_level:
            return replace(self, draft_ms=per_level)
        hop = min(max(0.0, hop), LONGEST_HOP_MS)
        return replace(self, draft_ms=per_level, hop_ms=blend(self.hop_ms, hop))

    def weakened(self, weight: float = SEED_WEIGHT) -> Learned:
        """The same rates and times, of limited weight."""
        return replace(
            self,
            first=self.first.capped(weight),
            later=self.later.capped(weight),
            guess=self.guess.capped(weight),
            line=self.line.capped(weight),
        )

    def joined(self, newer: Learned) -> Learned:
        """What both found out; times are those of the newer one, if it has them."""
        return replace(
            newer,
            first=self.first.joined(newer.first),
            later=self.later.joined(newer.later),
            guess=self.guess.joined(newer.guess),
            line=newer.line if newer.line.weight else self.line,
            draft_ms=newer.draft_ms or self.draft_ms,
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
        """Chance that the target's own token is what the drafter has next."""
        return self.first_rate if self.exact else self.guess.rate(0.5 * self.first_rate)


def _first_hits(outcome: Outcome) -> tuple[int, int]:
    return min(1, outcome.accepted_tokens), 1


def _later_hits(outcome: Outcome) -> tuple[int, int]:
    hits = max(0, outcome.accepted_tokens - 1)
    missed = 0 < outcome.accepted_tokens < outcome.draft_tokens
    return hits, hits + missed


def _level_hits(outcome: Outcome) -> tuple[int, int]:
    hits = outcome.accepted_tokens
    return hits, hits + (not outcome.to_leaf)


def _trunk_hits(outcome: Outcome) -> tuple[int, int]:
    """At the last level nobody can tell a leaf of the trunk from one beside it."""
    accepted = outcome.accepted_tokens
    beside = outcome.to_leaf and accepted < outcome.depth
    hits = max(0, accepted - 1) if outcome.to_leaf else accepted
    return hits, hits + (beside or not outcome.to_leaf)
