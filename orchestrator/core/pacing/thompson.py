"""The number of draft tokens of every round, by Thompson sampling over measurements."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.plan import PacingPlan, make_plan
from orchestrator.core.pacing.policy import (
    Decision,
    FinishedRound,
    Send,
    View,
    Wait,
    patience,
    wait_for,
)

FIRST_PROBE = 16
LONGEST_PROBE = 256
PROBE_TOKENS = 1
PLAN_EVERY = 8
"""Rounds between two plans. Rates are drawn as often."""
FIRST_PLANS = (1, 2, 4)
"""Rounds after which there is a plan already."""
NARROWER = 0.75
"""The window shrinks only when this share of it, or less, is needed."""


class Thompson(NamedTuple):
    """Asynchronous, with the number k = 0, 1, ... `most` of draft tokens that pays best.

    It draws acceptance rates from their posterior (Liu et al. 2024, 2406.03853, section 3.3)
    and sends as many of the ready tokens as is best for those rates, with the measured times
    of draft, step, queue and round trip (`plan`). It waits for more tokens only where the
    mean rates say so, too: to explore by waiting is expensive. While nothing is known it sends
    what is drafted and does not wait: the drafter works during plain rounds, too, which shows
    its hits for free. When no draft was sent for a while, it waits for one token and sends it
    as a probe, less and less often while probes fail.

    The drafter may be `ahead` tokens ahead, at most `most` (0: as many): drafts beyond are
    rejected too often. Draws depend on `seed` and the count of rounds alone.
    """

    most: int
    learned: Learned = Learned()
    seed: int = 0
    chained: bool = False
    plan: PacingPlan | None = None
    drawn: PacingPlan | None = None
    # The drafts survived the last verdict.
    warm: bool = False
    ahead: int = 0
    rounds: int = 0
    # Plain rounds in a row, and how many come before a probe.
    plain_rounds: int = 0
    probe: int = FIRST_PROBE

    @property
    def window(self) -> int:
        """Most tokens the drafter may be ahead."""
        return self.ahead or self.most

    @property
    def promise(self) -> float:
        """Expected tokens per millisecond; 0 = nothing is known."""
        return self.plan.rate if self.plan else 0.0

    def decide(self, view: View) -> Decision:
        """The best k of the ready tokens, or a wait for more."""
        most = min(self.most, view.room)
        ready = min(view.drafted, most)
        if self.plan is None or most == 0:
            return Send(ready)
        if not ready and self._probes and view.drafting:
            return self._until(view, PROBE_TOKENS) or Send(0)
        if not self.learned.draft_ms:
            return Send(min(ready, 1))
        plan = self.drawn or self.plan
        waits = view.drafting and ready < most and self._waits(ready)
        if waits and (wait := self._until(view, ready + 1)):
            return wait
        best = plan.best(ready, warm=self.warm)
        return Send(max(best, min(ready, PROBE_TOKENS)) if self._probes else best)

    def _waits(self, ready: int) -> bool:
        """By both the mean and the drawn rates: to explore by waiting is expensive."""
        plans = [plan for plan in (self.plan, self.drawn) if plan is not None]
        return all(plan.waits(ready, warm=self.warm) for plan in plans)

    @property
    def _probes(self) -> bool:
        return self.plain_rounds >= self.probe

    def _until(self, view: View, count: int) -> Wait | None:
        """The wait for `count` tokens from when the verifier became free, if it is not over."""
        assert self.plan is not None
        if not self.learned.draft_ms:
            return wait_for(view, 0.5e-3 * self.learned.costs.round_ms(0))
        return wait_for(view, patience(self.plan.wait(count)))

    def observe(self, outcome: FinishedRound) -> Thompson:
        """Learn from the round, and plan anew every few of them."""
        plain_rounds, probe = self._counted(outcome)
        after = Thompson(
            self.most,
            self.learned.add(outcome),
            self.seed,
            self.chained,
            self.plan,
            self.drawn,
            outcome.to_leaf and outcome.guessed is not False,
            self.ahead,
            self.rounds + 1,
            plain_rounds,
            probe,
        )
        due = after.rounds % PLAN_EVERY == 0 or after.rounds in FIRST_PLANS
        return after.informed(after.learned) if due else after

    def _counted(self, outcome: FinishedRound) -> tuple[int, int]:
        """Plain rounds in a row after this one, and how many come before a probe."""
        if self._probes:
            return 0, min(2 * self.probe, LONGEST_PROBE)
        if outcome.draft_tokens:
            return 0, FIRST_PROBE
        return self.plain_rounds + 1, self.probe

    def informed(self, learned: Learned) -> Thompson:
        """The policy with this knowledge instead of its own."""
        plan = make_plan(learned, self.most, self.plan, chained=self.chained)
        if plan is None:
            return self._replace(learned=learned)
        source = Random(f"pace/{self.seed}/{self.rounds}")
        drawn = plan.imagined(learned.drawn(source))
        ahead = self._ahead(plan.ahead())
        return self._replace(learned=learned, plan=plan, drawn=drawn, ahead=ahead)

    def _ahead(self, needed: int) -> int:
        """Widen at once, narrow only by a lot: each change is a message."""
        needed = min(needed, self.most)
        return needed if needed > self.window or needed < NARROWER * self.window else self.window
