"""A verifier and a drafter in exact time, around a pacing policy: no clocks, no text.

The drafter works ahead on what the session speculates and is told of a rollback
after a hop. Whether the token at a place of the text is guessed is drawn once
for that place, so that every policy meets the same text.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.pacing import FinishedRound, Policy, Send, View

Acceptance = Callable[[int], float]


@dataclass(frozen=True)
class Costs:
    """Milliseconds: a round of n draft tokens takes `plain + row * n`.

    A drafter at work makes every round `beside` times as long.
    """

    plain: float = 70.0
    row: float = 3.0
    draft: float = 11.0
    hop: float = 2.0
    beside: float = 1.0


class Session:
    """One session of the simulation."""

    def __init__(
        self, policy: Policy, accepted: Acceptance, costs: Costs | None = None, *, seed: int = 1
    ) -> None:
        self.policy, self.costs, self.exact = policy, costs or Costs(), True
        self.accepted, self.seed = accepted, seed
        self.now = 0.0
        self.tokens = 0
        # Where the drafter is in the text, and when the next token of its will arrive.
        self.drafted = 0
        self.next_at = self.costs.hop + self.costs.draft
        self.sent: list[int] = []
        self.waits: list[float] = []
        self.windows: list[int] = []

    def right(self, place: int) -> bool:
        """Whether the drafter's token for a place, after the right text, is the target's."""
        return random.Random(f"{self.seed}/{place}").random() < self.accepted(place)

    def run(self, rounds: int) -> Session:
        for _ in range(rounds):
            self.round()
        return self

    @property
    def per_ms(self) -> float:
        return self.tokens / self.now

    # --- one round ----------------------------------------------------------------

    def round(self) -> None:
        idle_since = self.now
        count = self._decided(idle_since)
        waited, sent_at = self.now - idle_since, self.now
        busy = self.costs.beside if self.policy.window else 1.0
        round_ms = busy * (self.costs.plain + self.costs.row * count)
        self._draft_until(sent_at + round_ms)
        hits = self._run_of_hits(count)
        whole = hits == count
        guessed = None
        if whole and self.drafted > count:
            guessed = self.right(self.tokens + count)
        self._commit(hits, whole and guessed is not False)
        outcome = FinishedRound(
            count, hits, hits + 1, round_ms, count * self.costs.draft,
            waited_ms=waited, whole=whole, guessed=guessed,
        )  # fmt: skip
        self.policy = self.policy.observe(outcome)
        self.sent.append(count)
        self.waits.append(waited)
        self.windows.append(self.policy.window)

    def _decided(self, idle_since: float) -> int:
        while True:
            view = View(
                self.now / 1e3, idle_since / 1e3, self.drafted, self.policy.window > 0, room=10_000
            )
            decision = self.policy.decide(view)
            if isinstance(decision, Send):
                return min(decision.count, self.drafted)
            full = self.drafted >= self.policy.window
            self._draft_until(
                min(1e3 * decision.until + 1e-6, float("inf") if full else self.next_at)
            )

    def _draft_until(self, time: float) -> None:
        while self.next_at <= time and self.drafted < self.policy.window:
            self.drafted += 1
            self.next_at += self.costs.draft
        self.now = max(self.now, time)
        if self.drafted >= self.policy.window:
            self.next_at = max(self.next_at, self.now + self.costs.draft)

    def _run_of_hits(self, count: int) -> int:
        return next((i for i in range(count) if not self.right(self.tokens + i)), count)

    def _commit(self, hits: int, goes_on: bool) -> None:
        emitted = hits + 1
        if goes_on and self.drafted >= emitted:
            self.drafted -= emitted
        elif goes_on and self.right(self.tokens + hits):
            # The token is on its way, and will not be drafted twice.
            self.drafted = 0
            self.next_at += self.costs.draft
        else:
            self.drafted = 0
            self.next_at = self.now + self.costs.hop + self.costs.draft
        self.tokens += emitted
