"""Policies that choose the number of draft tokens of every round by what was learned."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.core.pacing.baselines import Fixed
from orchestrator.core.pacing.learned import Learned
from orchestrator.core.pacing.plan import Plan, make_plan
from orchestrator.core.pacing.policy import Decision, Outcome, Send, View, Wait

# Of the expected wait, and milliseconds beside it, before what is there has to do.
PATIENCE = 1.5
PATIENCE_MS = 5.0
FIRST_PROBE = 16
LONGEST_PROBE = 256
PROBE_TOKENS = 1
WORTH_A_CHANGE = 1.02


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Asynchronous (AMUSD), with k = 0, 1, ... `window` draft tokens as pays best.

    While nothing is known it sends what is there and waits for nothing: the
    drafter works during plain rounds, too, and is found out for free. When no
    draft was sent for a while, one token is waited for and sent, to see;
    less and less often while nothing comes of it.
    """

    window: int
    learned: Learned = field(default_factory=Learned)
    plan: Plan | None = None
    # Plain rounds in a row, and how many of them there are before a probe.
    plain_rounds: int = 0
    probe: int = FIRST_PROBE

    @property
    def promise(self) -> float:
        """Tokens per millisecond that are to be expected; 0 = nothing is known."""
        return self.plan.rate if self.plan else 0.0

    def decide(self, view: View) -> Decision:
        """The best k for what is there, or a wait for more."""
        most = min(self.window, view.room)
        ready = min(view.drafted, most)
        if self.plan is None or most == 0:
            return Send(ready)
        if self._probes and not ready and view.drafting:
            return self._until(view, PROBE_TOKENS) or Send(0)
        best = self.plan.best(ready, most if view.drafting else ready)
        if best <= ready:
            return Send(max(best, min(ready, PROBE_TOKENS)) if self._probes else best)
        return self._until(view, best) or Send(self.plan.best(ready, ready))

    @property
    def _probes(self) -> bool:
        return self.plain_rounds >= self.probe

    def _until(self, view: View, count: int) -> Wait | None:
        """The wait for `count` tokens since the verifier became free, if it is not over."""
        assert self.plan is not None
        expected = PATIENCE * self.plan.wait(count, 0) + PATIENCE_MS
        if not self.learned.draft_ms:
            expected = 0.5 * self.learned.line.at(0)
        until = view.idle_since + 1e-3 * expected
        return Wait(until) if view.now < until else None

    def observe(self, outcome: Outcome) -> Adaptive:
        """Learn from the round, and plan anew."""
        learned = self.learned.add(outcome)
        plan = make_plan(learned, self.window, self.plan)
        return replace(self._counted(outcome), learned=learned, plan=plan)

    def _counted(self, outcome: Outcome) -> Adaptive:
        if self._probes:
            return replace(self, plain_rounds=0, probe=min(2 * self.probe, LONGEST_PROBE))
        if outcome.draft_tokens:
            return replace(self, plain_rounds=0, probe=FIRST_PROBE)
        return replace(self, plain_rounds=self.plain_rounds + 1)

    def told(self, learned: Learned) -> Adaptive:
        """The policy with this knowledge in place of its own."""
        return replace(self, learned=learned, plan=make_plan(learned, self.window, self.plan))


@dataclass(frozen=True, slots=True)
class Levels:
    """Synchronous trees as deep as pays, at most `most` levels.

    Nothing can be drafted after a tree, so every start is cold: the depth D is
    the one of the greatest E[tokens](D) / (wait(D) + round(D)), and at least 1.
    By rejection it stays for the session: to change the drafter's window may have
    it draft a tree again, and no place may be drawn twice in an epoch.
    """

    most: int
    learned: Learned = field(default_factory=Learned)
    window: int = 0
    patience: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", self._depth())

    @property
    def promise(self) -> float:
        """Tokens per millisecond that are to be expected; 0 = nothing is known."""
        return self._pace(self.window) if self.learned.draft_ms else 0.0

    def decide(self, view: View) -> Decision:
        """Send the tree when it is there or none will come."""
        return Fixed(self.window, self.patience).decide(view)

    def observe(self, outcome: Outcome) -> Levels:
        """Learn from the round, and choose the depth anew."""
        return replace(self, learned=self.learned.add(outcome))

    def told(self, learned: Learned) -> Levels:
        """The policy with this knowledge in place of its own."""
        return replace(self, learned=learned, window=0)

    def _depth(self) -> int:
        """The best depth; another one than now has to be better by more than a trifle."""
        if self.window and not self.learned.exact:
            return self.window
        if not self.learned.draft_ms:
            return self.most
        best = max(range(1, self.most + 1), key=self._pace)
        keeps = self.window and self._pace(best) <= WORTH_A_CHANGE * self._pace(self.window)
        return self.window if keeps else best

    def _pace(self, depth: int) -> float:
        """Tokens per millisecond of rounds with trees of this depth."""
        learned = self.learned
        levels = sum(learned.later_rate**level for level in range(depth))
        wait = learned.hop_ms + depth * learned.draft_ms
        return (1.0 + learned.first_rate * levels) / (wait + learned.line.at(depth))
