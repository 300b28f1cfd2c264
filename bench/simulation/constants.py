"""Policies that always send the same number of draft tokens: what a grid is measured by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.pacing import Decision, FinishedRound, Fixed, Policy, Send, View, Wait

PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Constant:
    """`count` tokens a round while the drafter goes on, at most `window` ahead."""

    window: int
    count: int

    def decide(self, view: View) -> Decision:
        """Send when so many are there, or no more will come."""
        wanted = min(self.count, view.room)
        late = view.now >= view.idle_since + PATIENCE_S
        if view.drafted >= wanted or not view.drafting or late:
            return Send(min(view.drafted, wanted))
        return Wait(view.idle_since + PATIENCE_S)

    def observe(self, outcome: FinishedRound) -> Constant:  # noqa: ARG002 - nothing to learn
        """Nothing is learned."""
        return self


def constants(counts: Sequence[int], window: int) -> dict[str, Policy]:
    """For each k, waiting for the verifier (`k sync`) and going on beside it (`k async`)."""
    found: dict[str, Policy] = {}
    for count in counts:
        found[f"{count} sync"] = Fixed(count)
        if count < window:
            found[f"{count} async"] = Constant(window, count)
    return found
