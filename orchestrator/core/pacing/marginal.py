"""Small trees that cost next to nothing to draft, cut where the next node does not pay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from orchestrator.core.pacing.costs import RoundCosts, blend
from orchestrator.core.pacing.policy import Decision, FinishedRound, Send, View, wait_for
from orchestrator.core.pacing.steps import Steps
from services.contract.handover import EDGES, believed, range_of, worth_most
from services.contract.types import Allowance

TRUST = 6.0
"""Nodes that a drafter's own word counts as, in each of these ranges."""
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
"""Weight of the newest round in what it takes to be late."""
HOPED = 0.5
"""Tokens beyond one that a round with a tree brings, before any was seen."""
TRIAL = 8
"""Rounds before a judgement, and again after a rest."""
FEW = 0.5
"""Squared tokens that the sum over all rounds is uncertain by at least."""
CROWDING = 1.0
"""How much dearer a row is reckoned in a step of many sessions than what it takes.

A token more saves one of them a step, and a step saves the others nothing unless somebody
takes the place that is free sooner: for a crowd that came at once only the slowest counts.
"""
USUAL = (0.5, 0.7, 0.82, 0.9, 0.97, 1.03, 1.08, 1.12)
"""Tokens beyond one that the first nodes of a good tree bring, on the whole."""
CROWDED_REST = 64
"""Rounds of rest where not even these would pay; fewer, if the step empties."""
CROWD = 8
"""Sessions of a step in which drafts have to be known to pay before they are tried."""
DOUBT = 1.0
"""Standard errors by which drafts must seem to lose before they rest."""


class Range(NamedTuple):
    """Of the nodes within a range of chances: how many were accepted, and should have been."""

    hits: float = 0.0
    promised: float = 0.0

    @property
    def factor(self) -> float:
        """What a drafter's word is to be multiplied with."""
        return (self.hits + TRUST / 4) / (self.promised + TRUST / 4)


class Gain(NamedTuple):
    """Discounted rounds with the drafter at work: tokens beyond one each, and extra time.

    `squares`: of the tokens. `extra`: what rounds took beyond a plain one, in plain rounds.
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
        """Whether the tokens are worth less than their time, chance allowed for."""
        mean, cost = self.tokens / self.rounds, self.extra / self.rounds
        spread = max(0.0, self.squares / self.rounds - mean * mean)
        # Rounds that brought nothing at all are no proof that none ever will.
        error = math.sqrt(spread * self.rounds + FEW) / self.rounds
        return mean + DOUBT * error < cost


class Estimates(NamedTuple):
    """What rounds teach of one drafter's trees: its word, the verifier's stairs, the way.

    `wait_ms`: until a tree is there. `queue_ms`: how long a block lies that waited for none;
    `late_ms`: how much longer one that did, since the sessions beside had begun their step.
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
        """The same, for a session that finds itself among so many."""
        return self._replace(costs=self.costs._replace(sessions=float(sessions)))

    def late(self, outcome: FinishedRound) -> float:
        """Milliseconds that its wait for a tree cost a round in the queue; a step at most."""
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
        """The chances as they turn out to be: between 0 and 1, and still falling."""
        return believed(reach, self.factors)

    @property
    def factors(self) -> tuple[float, ...]:
        """What a chance is to be multiplied with, by its range."""
        return tuple([one.factor for one in self.ranges])

    def rounds_ms(self, most: int) -> tuple[float, ...]:
        """A round of 0, 1, ... `most` nodes, where every session of a step sends as many."""
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
        """What a row's time counts as, in a step of so many sessions."""
        return 1.0 + CROWDING * (1.0 - 1.0 / max(1.0, self.costs.sessions))

    def _step_ms(self, curve: tuple[float, ...], rows: float) -> float:
        """The step of so many rows; beyond those that have a time of their own, the line."""
        last = len(curve)
        if rows >= last:
            return curve[-1] + self.steps.line.slope * (rows - last)
        whole = max(1, int(rows))
        low, high = curve[whole - 1], curve[min(whole, last - 1)]
        return low + (rows - whole) * (high - low)

    def without_hits(self) -> Estimates:
        """What rounds and the way cost alone; a drafter's word is believed again."""
        return self._replace(ranges=Estimates().ranges)

    def with_hits_of(self, other: Estimates) -> Estimates:
        """These costs, with how far another one's texts bear the drafter's word out."""
        return self._replace(ranges=other.ranges)

    def weakened(self) -> Estimates:
        """The same, of limited weight."""
        return self._replace(
            ranges=tuple([_capped(one, SEED_WEIGHT) for one in self.ranges]),
            steps=self.steps.capped(SEED_WEIGHT),
            costs=self.costs.capped(SEED_WEIGHT),
        )

    def joined(self, newer: Estimates) -> Estimates:
        """What both found out, the newer one with twice the weight; times are the newer's."""
        if not newer.costs.known:
            return self
        pairs = zip(self.ranges, newer.ranges, strict=True)
        ranges = [
            Range(old.hits / 2 + new.hits, old.promised / 2 + new.promised) for old, new in pairs
        ]
        # A new session starts from these steps already: what it saw has been added to them.
        return newer._replace(ranges=tuple([_capped(one, 10 * SEED_WEIGHT) for one in ranges]))


def _capped(one: Range, promised: float) -> Range:
    kept = min(1.0, promised / one.promised) if one.promised else 1.0
    return Range(kept * one.hits, kept * one.promised)


@dataclass(frozen=True, slots=True)
class Marginal:
    """Of a tree that comes best first, as many nodes as pay.

    Asked when the verifier is free, it waits the few milliseconds that a tree takes to come,
    and sends the n nodes of the greatest (chances of the first n) - pace * (time of a round
    of n), over all n: the cost of rows has stairs, so the best n may lie beyond one that
    loses. `pace` is what a plain round's time brings in this session. A plain round is one at
    rest, which waits for no way there and back.

    The drafter rests while what it brings is worth less than what it takes, waits and what
    comes of being late included, by more than chance. Each rest ends in a trial, and is twice
    as long as the one before if that fails. A session among others that are late by more than
    a tree may bring begins with a rest. So does one in a step so full that a good tree would not
    pay for its rows; that rest ends as soon as it would.
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
    # Rounds with the drafter at work until there is a judgement.
    trial: int = TRIAL
    # All of the session's own rounds, rests included.
    tokens: int = 0
    ms: float = 0.0

    @property
    def window(self) -> int:
        """Levels that a tree may have; 0 while the drafter rests."""
        return 0 if self.resting else self.depth

    def decide(self, view: View) -> Decision:
        """Wait for the tree, a moment; then send what pays of it."""
        if view.live or self.resting:
            return Send(0)
        if not view.drafted:
            wait = view.drafting and view.room > 0
            return (wait_for(view, self._patience()) if wait else None) or Send(0)
        return Send(self._best(view))

    def _patience(self) -> float:
        """Seconds; a tree takes a fraction of a millisecond, and two messages."""
        known = self.learned.wait_ms
        limit = PATIENCE * known + PATIENCE_MS if known else FIRST_PATIENCE_MS
        if self.times:
            limit = min(limit, 0.5 * self.times[0])
        return 1e-3 * limit

    def _best(self, view: View) -> int:
        """How many nodes of the tree that is there."""
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
        """What 1, 2, ... nodes cost in all, in tokens."""
        plain = self.times[0]
        pace = self.learned.dearness * self.gain.pace / self._plain_ms
        return tuple([pace * (ms - plain) for ms in self.times[1:]])

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
        after = replace(
            self,
            learned=learned,
            rounds=rounds,
            times=times,
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

    def _may_pay(self, outcome: FinishedRound) -> bool:
        """Whether a good tree of some size is worth its rows; unknown, small steps find out first.

        And, where the round did not wait for it elsewhere, how long its block lay at the verifier.
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
        """Milliseconds that the round took beside its step, for its draft.

        A block that left while the one before was verified waits at the verifier alone: for the
        trees of all the sessions beside it, too.
        """
        if outcome.chained:
            return outcome.queue_ms
        return outcome.waited_ms + self.learned.late(outcome) + self.learned.costs.transit_ms

    @property
    def _plain_ms(self) -> float:
        """A plain round where the drafter rests: the verifier has the next one by then."""
        return max(1e-3, self.times[0] - self.learned.costs.transit_ms)

    def _judged(self) -> Marginal:
        if self.trial or not self.rests:
            return self
        if not self.gain.loses:
            return replace(self, rest=FIRST_REST)
        longer = min(2 * self.rest, LONGEST_REST)
        return replace(self, gain=Gain(), resting=self.rest, rest=longer, trial=TRIAL)

    def told(self, learned: Estimates) -> Marginal:
        """The policy with this knowledge in place of its own."""
        times = learned.rounds_ms(self.most) if learned.costs.known else ()
        late = bool(times) and learned.late_ms > HOPED * times[0]
        return replace(self, learned=learned, times=times, resting=FIRST_REST if late else 0)
