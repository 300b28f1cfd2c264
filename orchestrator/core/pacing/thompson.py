"""The number of draft tokens of every round by Thompson sampling, on what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

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
"""A window that could be smaller than this share of itself is made smaller."""


@dataclass(frozen=True, slots=True)
class Thompson:
    """Asynchronous, with k = 0, 1, ... `most` draft tokens as pays best.

    After every round acceptance rates are drawn from their posterior (Liu et al. 2024,
    2406.03853, section 3.3), and of the tokens that are there as many are sent as is best
    for those rates, with draft, step, queue and way as measured (`plan`). Tokens that are
    not there yet are waited for where that is best by the mean: to explore by waiting is
    dear. While nothing is known it sends what is there
    and waits for nothing: the drafter works during plain rounds, too, and is found out
    for free. When no draft was sent for a while, one token is waited for and sent,
    to see; less and less often while nothing comes of it.

    The drafter may be `window` tokens ahead, at most `most`: what is drafted beyond is
    thrown away too often. `seed` and the count of rounds are all that draws depend on.
    """

    most: int
    learned: Learned = field(default_factory=Learned)
    seed: int = 0
    chained: bool = False
    plan: PacingPlan | None = None
    drawn: PacingPlan | None = None
    # What was drafted when the last verdict came was not void.
    warm: bool = False
    window: int = 0
    rounds: int = 0
    # Plain rounds in a row, and how many of them there are before a probe.
    plain_rounds: int = 0
    probe: int = FIRST_PROBE

    def __post_init__(self) -> None:
        if not self.window:
            object.__setattr__(self, "window", self.most)

    @property
    def promise(self) -> float:
        """Tokens per millisecond that are to be expected; 0 = nothing is known."""
        return self.plan.rate if self.plan else 0.0

    def decide(self, view: View) -> Decision:
        """The best k for what is there, or a wait for more."""
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
        """By the mean rates and by those drawn: to explore by waiting is dear."""
        plans = [plan for plan in (self.plan, self.drawn) if plan is not None]
        return all(plan.waits(ready, warm=self.warm) for plan in plans)

    @property
    def _probes(self) -> bool:
        return self.plain_rounds >= self.probe

    def _until(self, view: View, count: int) -> Wait | None:
        """The wait for `count` tokens since the verifier became free, if it is not over."""
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
            self.window,
            self.rounds + 1,
            plain_rounds,
            probe,
        )
        due = after.rounds % PLAN_EVERY == 0 or after.rounds in FIRST_PLANS
        return after.told(after.learned) if due else after

    def _counted(self, outcome: FinishedRound) -> tuple[int, int]:
        """Plain rounds in a row after this one, and how many there are before a probe."""
        if self._probes:
            return 0, min(2 * self.probe, LONGEST_PROBE)
        if outcome.draft_tokens:
            return 0, FIRST_PROBE
        return self.plain_rounds + 1, self.probe

    def told(self, learned: Learned) -> Thompson:
        """The policy with this knowledge in place of its own."""
        plan = make_plan(learned, self.most, self.plan, chained=self.chained)
        if plan is None:
            return replace(self, learned=learned)
        source = Random(f"pace/{self.seed}/{self.rounds}")
        return replace(
            self,
            learned=learned,
            plan=plan,
            drawn=plan.imagined(learned.drawn(source)),
            window=self._window(plan.ahead()),
        )

    def _window(self, needed: int) -> int:
        """Wider at once, narrower only by much: each change is a message."""
        needed = min(needed, self.most)
        return needed if needed > self.window or needed < NARROWER * self.window else self.window
