"""The measured time of a round: round trip, queue, and step."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.pacing.policy import FinishedRound
from orchestrator.core.pacing.steps import Told
from services.scheduling.step_time import OUTLIER, StepTimeModel


def blend(mean: float, value: float, weight: float = 0.2) -> float:
    """A running mean; 0 = nothing seen yet."""
    return value if mean == 0.0 else mean + weight * (value - mean)


class RoundCosts(NamedTuple):
    """Milliseconds of a round of n levels of draft tokens, other sessions in the step included.

    A step's time depends on the rows of *all* its sessions. A session's rows are priced as
    if every session added as many: if each counted its own rows only, all would make every
    step longer. So speculation shrinks as steps fill.
    """

    line: StepTimeModel = StepTimeModel()
    transit_ms: float = 0.0
    # As a share of a step: how long a block waits for the step before.
    queue_share: float = 0.0
    sessions: float = 1.0
    rows_per_level: float = 1.0

    @property
    def known(self) -> bool:
        """Whether there was a round."""
        return self.line.weight > 0.0

    def add(self, outcome: FinishedRound) -> RoundCosts:
        """With one more round."""
        rows = outcome.batch_rows or outcome.batch_size * (1 + outcome.draft_tokens)
        transit_ms, queue_share, shape = self.transit_ms, self.queue_share, self.rows_per_level
        if outcome.verify_ms and not outcome.chained:
            transit_ms, queue_share = self._way(outcome)
        if outcome.levels:
            shape = blend(shape, outcome.draft_tokens / outcome.levels)
        return RoundCosts(
            self.line.add(rows, outcome.verify_ms or outcome.round_ms),
            transit_ms,
            queue_share,
            blend(self.sessions, outcome.batch_size) if self.known else outcome.batch_size,
            shape,
        )

    def _way(self, outcome: FinishedRound) -> tuple[float, float]:
        """Transit time and queue share; a chained block also waited for its own session."""
        transit = max(0.0, outcome.round_ms - outcome.verify_ms - outcome.queue_ms)
        if self.transit_ms:
            transit = min(transit, OUTLIER * self.transit_ms)
        share = min(1.0, outcome.queue_ms / outcome.verify_ms)
        return (
            blend(self.transit_ms, transit),
            self.queue_share + 0.2 * (share - self.queue_share),
        )

    def step_ms(self, levels: float) -> float:
        """The step alone."""
        return self.line.at(self.sessions * (1.0 + self.rows_per_level * levels))

    def round_ms(self, levels: float) -> float:
        """From sending to verdict."""
        return self.transit_ms + (1.0 + self.queue_share) * self.step_ms(levels)

    @property
    def late_ms(self) -> float:
        """The cost of leaving later than the other sessions, whose step does not wait.

        The block then waits until their step is over. It costs nothing where the block would
        wait anyway, as when halves of the sessions take turns, or where no session is beside.
        """
        beside = 1.0 - 1.0 / max(1.0, self.sessions)
        return max(0.0, beside - self.queue_share) * self.step_ms(0.0)

    def informed(self, told: Told) -> RoundCosts:
        """With what was told of steps, as long as there was no round."""
        return self if self.known or not told.curve else self._replace(line=told.line)

    def capped(self, weight: float) -> RoundCosts:
        """The same costs, of limited weight."""
        return self._replace(line=self.line.capped(weight))
