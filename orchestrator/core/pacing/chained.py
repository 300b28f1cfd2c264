"""Sending the next block before the verdict on the last one, so that no verifier waits for it."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.pacing.costs import RoundCosts
from orchestrator.core.pacing.policy import Decision, FinishedRound, Policy, Send, View, Wait
from orchestrator.core.pacing.resting import costs_of


class Chained(NamedTuple):
    """Asks its inner policy early, so that a block arrives when the verifier becomes free.

    The tail then leaves as a block that extends the one under way. If that one is rejected,
    the later is discarded unverified, at the price of a message; if it is accepted, the
    verifier went on without a round trip. Sent earlier, the block would only queue and hold
    fewer tokens; sent too late, it is no later than without chaining. None is sent while the
    drafter rests, so that plain rounds show what they take.
    """

    inner: Policy
    costs: RoundCosts = RoundCosts()

    @property
    def window(self) -> int:
        """That of the inner policy."""
        return self.inner.window

    def decide(self, view: View) -> Decision:
        """The inner policy's decision; with a block under way, only when its end is near."""
        if not view.live:
            return self.inner.decide(view)
        if not self.window or not self.costs.transit_ms:
            return Send(0)
        due = self._free_at(view) - 0.5e-3 * self.costs.transit_ms
        if view.now < due:
            return Wait(due)
        return _lengthened(self.inner.decide(_ahead(view, due)), view)

    def _free_at(self, view: View) -> float:
        """When the verifier will finish the blocks under way, on the driver's clock."""
        free = 0.0
        for flight in view.live:
            arrived = flight.sent_at + 0.5e-3 * self.costs.transit_ms
            free = max(free, arrived) + 1e-3 * self.costs.step_ms(flight.draft_tokens)
        return free

    def observe(self, outcome: FinishedRound) -> Chained:
        """Learn the times of steps and round trips, or take what the inner policy learned."""
        inner = self.inner.observe(outcome)
        return Chained(inner, costs_of(inner) or self.costs.add(outcome))


def _ahead(view: View, due: float) -> View:
    """What the inner policy would see if all blocks under way were accepted."""
    bonus = int(view.bonus)
    return View(
        view.now,
        due,
        max(0, view.drafted - bonus),
        view.drafting,
        max(0, view.room - bonus),
        (),
        view.bonus,
    )


def _lengthened(decision: Decision, view: View) -> Decision:
    """The block with the token that is the bonus of the one before, if all goes well."""
    if isinstance(decision, Wait) or not view.bonus:
        return decision
    return Send(decision.count + 1)
