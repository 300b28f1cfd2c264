"""Small trees that cost almost nothing to draft, cut where the next node does not pay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from orchestrator.core.pacing.costs import RoundCosts, blend
from orchestrator.core.pacing.policy import Decision, FinishedRound, Send, View, wait_for
from orchestrator.core.pacing.steps import Steps, Told
from orchestrator.core.pacing.thompson import FIRST_PROBE, LONGEST_PROBE
from services.contract.types import Allowance
from services.scheduling.tree_budget import EDGES, believed, range_of, worth_most

TRUST = 6.0
"""Weight of a drafter's own probabilities in each of these ranges, in nodes."""
KEEP = 0.99
GAIN_KEEP = 0.97
SEED_WEIGHT = 12.0
PLAN_EVERY = 4
FIRST_PLANS = (1, 2)
FIRST_PATIENCE_MS = 15.0
PATIENCE = 2.0
PATIENCE_MS = 2.0
FIRST_REST = 16
LONGEST_REST = 256
LATELY = 0.2
"""Weight of the newest round in the mean delay of late blocks."""
HOPED = 0.5
"""Prior of the tokens beyond one in a round with a tree."""
TRIAL = 8
"""Rounds before a judgement, and again after a rest."""
FEW = 0.5
"""Least variance of the tokens over all rounds."""
CROWDING = 1.0
"""The price of a row in a step of many sessions, over its time.

A token more saves one session a step, but the others nothing, unless a new session takes
the place that is free sooner: of sessions that came together only the slowest counts.
"""
USUAL = (0.5, 0.7, 0.82, 0.9, 0.97, 1.03, 1.08, 1.12)
"""Tokens beyond one that the first nodes of a good tree bring, cumulative."""
CROWDED_REST = 64
"""Rounds of rest where not even a good tree would pay; fewer if the step empties."""
CROWD = 8
"""In steps of so many sessions drafts are tried only if they are known to pay."""
DOUBT = 1.0
"""Standard errors by which drafts must lose before the drafter rests."""


class Range(NamedTuple):
    """For nodes within a range of chances: how many were accepted, and how many expected."""

    hits: float = 0.0
    promised: float = 0.0

    @property
    def factor(self) -> float:
        """The correction factor of the drafter's chances."""
        return (self.hits + TRUST / 4) / (self.promised + TRUST / 4)


class Gain(NamedTuple):
    """Discounted rounds in which the drafter worked: tokens beyond one each, and extra time.

    `squares`: of the tokens. `extra`: the time beyond a plain round, in plain rounds.
    """

    rounds: float = 0.0
    tokens: float = 0.0
    squares: float = 0.0
    extra: float = 0.0

    def add(self, tokens: int, extra: float) -> Gain:
        """With one more round."""
        return Gain(
            GAIN_KEEP * self.rounds + 1.0,
            GAIN_KEEP * self.tokens + tokens,
            GAIN_KEEP * self.squares + tokens * tokens,
            GAIN_KEEP * self.extra + extra,
        )

    @property
    def pace(self) -> float:
        """Tokens in the time of a plain round."""
        return (self.rounds + self.tokens) / (self.rounds + self.extra) if self.rounds else 1.0

    @property
    def loses(self) -> bool:
        """Whether the tokens are significantly worth less than their time."""
        mean, cost = self.tokens / self.rounds, self.extra / self.rounds
        spread = max(0.0, self.squares / self.rounds - mean * mean)
        # Rounds without any accepted token do not prove that there never will be one.
        error = math.sqrt(spread * self.rounds + FEW) / self.rounds
        return mean + DOUBT * error < cost


class Estimates(NamedTuple):
    """What rounds teach about one drafter's trees: calibration, step times, round trip.

    `wait_ms`: until a tree arrives. `queue_ms`: the queue time of a block that did not wait
    for a tree; `late_ms`: the extra queue time of one that did, and missed the others' step.
    """

    ranges: tuple[Range, ...] = (Range(),) * (len(EDGES) + 1)
    steps: Steps = Steps()
    costs: RoundCosts = RoundCosts()
    wait_ms: float = 0.0
    queue_ms: float = 0.0
    late_ms: float = 0.0

    def add(self, outcome: FinishedRound) -> Estimates:
        """With one more round."""
        rows = outcome.batch_rows or outcome.batch_size * (1 + outcome.draft_tokens)
        wait_ms, queue_ms, late_ms = self.wait_ms, self.queue_ms, self.late_ms
        if outcome.waited_ms:
            wait_ms = blend(wait_ms, outcome.waited_ms)
            late_ms += LATELY * (self.late(outcome) - late_ms)
        else:
            queue_ms += LATELY * (outcome.queue_ms - queue_ms)
        return Estimates(
            self._ranges(outcome) if outcome.reach else self.ranges,
            self.steps.add(rows, outcome.verify_ms or outcome.round_ms),
            self.costs.add(outcome),
            wait_ms,
            queue_ms,
            late_ms,
        )

    def among(self, sessions: int) -> Estimates:
        """The same estimates, in a step of so many sessions."""
        return self._replace(costs=self.costs._replace(sessions=float(sessions)))

    def late(self, outcome: FinishedRound) -> float:
        """Queue milliseconds that the wait for a tree cost the round; a step at most."""
        if not outcome.waited_ms:
            return 0.0
        return min(max(0.0, outcome.queue_ms - self.queue_ms), outcome.verify_ms)

    def _ranges(self, outcome: FinishedRound) -> tuple[Range, ...]:
        ranges = list(self.ranges)
        for node, chance in enumerate(outcome.reach):
            place = range_of(chance)
            hits, promised = ranges[place]
            hit = node in outcome.taken
            ranges[place] = Range(KEEP * hits + hit, KEEP * promised + chance)
        return tuple(ranges)

    def believed(self, reach: tuple[float, ...]) -> list[float]:
        """The calibrated chances: between 0 and 1, and still falling."""
        return believed(reach, self.factors)

    @property
    def factors(self) -> tuple[float, ...]:
        """The correction factors of chances, by range."""
        return tuple([one.factor for one in self.ranges])

    def rounds_ms(self, most: int) -> tuple[float, ...]:
        """Rounds of 0, 1, ... `most` nodes, if every session of a step sends as many."""
        costs, curve = self.costs, self.steps.curve()
        sessions = max(1.0, costs.sessions)
        queue = 1.0 + costs.queue_share
        return tuple(
            [
                costs.transit_ms + queue * self._step_ms(curve, sessions * (1.0 + nodes))
                for nodes in range(most + 1)
            ]
        )

    @property
    def dearness(self) -> float:
        """The price of a row over its time, in a step of so many sessions."""
        return 1.0 + CROWDING * (1.0 - 1.0 / max(1.0, self.costs.sessions))

    def _step_ms(self, curve: tuple[float, ...], rows: float) -> float:
        """The step of so many rows: the measured mean, or beyond those the linear model."""
        last = len(curve)
        if rows >= last:
            return curve[-1] + self.steps.line.slope * (rows - last)
        whole = max(1, int(rows))
        low, high = curve[whole - 1], curve[min(whole, last - 1)]
        return low + (rows - whole) * (high - low)

    def without_hits(self) -> Estimates:
        """Only the costs of rounds and round trips; the calibration starts anew."""
        return self._replace(ranges=Estimates().ranges)

    def with_hits_of(self, other: Estimates) -> Estimates:
        """These costs, with another one's calibration."""
        return self._replace(ranges=other.ranges)

    def informed(self, told: Told) -> Estimates:
        """With what was told of steps."""
        return self._replace(steps=self.steps.informed(told), costs=self.costs.informed(told))

    def weakened(self) -> Estimates:
        """The same, of limited weight."""
        return self._replace(
            ranges=tuple([_capped(one, SEED_WEIGHT) for one in self.ranges]),
            steps=self.steps.capped(SEED_WEIGHT),
            costs=self.costs.capped(SEED_WEIGHT),
        )

    def joined(self, newer: Estimates) -> Estimates:
        """What both learned, the newer one with twice the weight; times are the newer's."""
        if not newer.costs.known:
            return self
        pairs = zip(self.ranges, newer.ranges, strict=True)
        ranges = [
            Range(old.hits / 2 + new.hits, old.promised / 2 + new.promised) for old, new in pairs
        ]
        # A new session started from these steps, so its own already contain them.
        return newer._replace(ranges=tuple([_capped(one, 10 * SEED_WEIGHT) for one in ranges]))


def _capped(one: Range, promised: float) -> Range:
    kept = min(1.0, promised / one.promised) if one.promised else 1.0
    return Range(kept * one.hits, kept * one.promised)


@dataclass(frozen=True, slots=True)
class Marginal:
    """Sends as many nodes of a best-first tree as pay.

    When the verifier is free it waits the few milliseconds until the tree arrives, and sends
    the n nodes that maximise (sum of the first n chances) - pace * (time of a round of n),
    over all n: step time rises in stairs, so the best n may lie beyond one that loses. `pace`
    is tokens per time of a plain round in this session. A plain round is one at rest, which
    waits for no round trip.

    The drafter rests while it brings significantly less than it costs, waits and late steps
    included. Each rest ends in a trial; if that fails, the next rest is twice as long. A session
    begins with a rest among sessions that are late by more than a tree may bring, and in a step
    so full that a good tree would not pay for its rows; that rest ends as soon as it would.

    Where no node has paid for long, one is sent as a probe: only steps with more rows teach what
    a row takes, and those that did may have been slow for another reason.
    """

    most: int
    depth: int
    rests: bool = True
    learned: Estimates = field(default_factory=Estimates)
    gain: Gain = field(default_factory=Gain)
    times: tuple[float, ...] = ()
    rounds: int = 0
    resting: int = 0
    rest: int = FIRST_REST
    # Whether it rests because the step is full.
    crowded: bool = False
    # Rounds with the drafter at work until the next judgement.
    trial: int = TRIAL
    # Rounds in a row without a node, rests included; and how many come before a probe.
    plain_rounds: int = 0
    probe: int = FIRST_PROBE
    # All of the session's own rounds, rests included.
    tokens: int = 0
    ms: float = 0.0

    @property
    def window(self) -> int:
        """Levels that a tree may have; 0 while the drafter rests."""
        return 0 if self.resting else self.depth

    def decide(self, view: View) -> Decision:
        """Wait for the tree, a moment; then send as many nodes as pay."""
        if view.live or self.resting:
            return Send(0)
        if not view.drafted:
            wait = view.drafting and view.room > 0
            return (wait_for(view, self._patience()) if wait else None) or Send(0)
        return Send(self._best(view))

    def _patience(self) -> float:
        """Seconds to wait; a tree takes a fraction of a millisecond and two messages."""
        known = self.learned.wait_ms
        limit = PATIENCE * known + PATIENCE_MS if known else FIRST_PATIENCE_MS
        if self.times:
            limit = min(limit, 0.5 * self.times[0])
        return 1e-3 * limit

    def _best(self, view: View) -> int:
        """How many nodes of the tree to send."""
        if view.room <= 0:
            return 0
        if not view.reach:
            return min(view.drafted, self.most)
        chances = self.learned.believed(view.reach[: self.most])
        if not self.times:
            return sum([chance > 0.2 for chance in chances])
        return worth_most(chances, self._prices)

    @property
    def _prices(self) -> tuple[float, ...]:
        """The total cost of 1, 2, ... nodes, in tokens; of a probe the first one costs nothing."""
        plain = self.times[0]
        pace = self.learned.dearness * self.gain.pace / self._plain_ms
        prices = [pace * (ms - plain) for ms in self.times[1:]]
        if self._probes:
            prices[:1] = [0.0]
        return tuple(prices)

    @property
    def _probes(self) -> bool:
        return self.plain_rounds >= self.probe

    def allowance(self, most: int) -> Allowance | None:
        """How much the verifier may take of a tree of `most` nodes by itself; None = it may not."""
        if self.resting or not self.times or most <= 0:
            return None
        return Allowance(self._prices[:most], self.learned.factors)

    def observe(self, outcome: FinishedRound) -> Marginal:
        """Learn from the round, and judge."""
        learned, rounds = self.learned.add(outcome), self.rounds + 1
        if rounds == 1:
            learned = learned.among(outcome.batch_size)
        due = not rounds % PLAN_EVERY or rounds in FIRST_PLANS
        times = learned.rounds_ms(self.most) if due else self.times
        plain_rounds, probe = self._probed(outcome)
        after = replace(
            self,
            learned=learned,
            rounds=rounds,
            times=times,
            plain_rounds=plain_rounds,
            probe=probe,
            tokens=self.tokens + outcome.emitted_tokens,
            ms=self.ms + outcome.spent_ms,
        )
        if self.resting:
            emptied = self.crowded and due and after._may_pay(outcome)
            left = 0 if emptied else self.resting - 1
            return replace(after, resting=left, crowded=self.crowded and left > 0)
        if not times:
            return after
        if due and self.trial and self.rests and not after._may_pay(outcome):
            return replace(after, resting=CROWDED_REST, crowded=True, trial=TRIAL)
        return after._counted(outcome)._judged()

    def _probed(self, outcome: FinishedRound) -> tuple[int, int]:
        """Rounds without a node after this one, and how many come before a probe."""
        if not outcome.draft_tokens:
            return self.plain_rounds + 1, self.probe
        return 0, min(2 * self.probe, LONGEST_PROBE) if self._probes else FIRST_PROBE

    def _may_pay(self, outcome: FinishedRound) -> bool:
        """Whether a good tree of some size is worth its rows; if unknown, small steps try first.

        The cost includes the block's queue time, where the round did not wait elsewhere.
        """
        if not self.learned.steps.line.sure:
            return outcome.batch_size < CROWD or self.rounds > FIRST_REST
        plain = self.times[0] - (self.learned.queue_ms if outcome.chained else 0.0)
        dear = self.learned.dearness / self._plain_ms
        nodes = range(1, min(self.most, len(USUAL)) + 1)
        return any(USUAL[n - 1] > dear * (self.times[n] - plain) for n in nodes)

    def _counted(self, outcome: FinishedRound) -> Marginal:
        rows = self.times[min(outcome.draft_tokens, self.most)] - self.times[0]
        extra = self.learned.dearness * rows + self._way(outcome)
        gain = self.gain.add(outcome.emitted_tokens - 1, extra / self._plain_ms)
        return replace(self, gain=gain, trial=max(0, self.trial - 1))

    def _way(self, outcome: FinishedRound) -> float:
        """Milliseconds of the round outside its step, for its draft.

        A block that was sent during the verification before it waits at the verifier only,
        there also for the trees of other sessions.
        """
        if outcome.chained:
            return outcome.queue_ms
        return outcome.waited_ms + self.learned.late(outcome) + self.learned.costs.transit_ms

    @property
    def _plain_ms(self) -> float:
        """A plain round at rest: the verifier has its block in time."""
        return max(1e-3, self.times[0] - self.learned.costs.transit_ms)

    def _judged(self) -> Marginal:
        if self.trial or not self.rests:
            return self
        if not self.gain.loses:
            return replace(self, rest=FIRST_REST)
        longer = min(2 * self.rest, LONGEST_REST)
        return replace(self, gain=Gain(), resting=self.rest, rest=longer, trial=TRIAL)

    def informed(self, learned: Estimates) -> Marginal:
        """The policy with this knowledge instead of its own."""
        times = learned.rounds_ms(self.most) if learned.steps.known else ()
        late = bool(times) and learned.late_ms > HOPED * times[0]
        return replace(self, learned=learned, times=times, resting=FIRST_REST if late else 0)
