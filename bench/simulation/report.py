"""What a simulation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.simulation.run import Simulation

POSITIONS = 8


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of the others does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a run; the utilisations are shares of the time that all workers had.

    `ms_per_token`: what a session waits for a token, from its verifier being ready to its
    last token, over all sessions.
    """

    ms_per_token: float
    tokens_per_second: float
    tokens: int
    rounds: int
    sent: int
    accepted: int
    drafted: int
    forwards: int
    verifier_use: float
    drafter_use: float

    @classmethod
    def of(cls, simulation: Simulation) -> Report:
        """The figures of a run that is over."""
        accounts = [session.account for session in simulation.ended_sessions]
        verifiers, drafters = simulation.verifiers, simulation.drafters
        tokens = sum(one.tokens for one in accounts)
        rounds = sum(one.rounds for one in accounts)
        span = max(one.finished for one in accounts) - min(one.opened for one in accounts)
        return cls(
            ms_per_token=1e3 * sum(one.seconds for one in accounts) / tokens,
            tokens_per_second=tokens / span,
            tokens=tokens,
            rounds=rounds,
            sent=sum(one.sent for one in accounts),
            accepted=sum(one.accepted for one in accounts),
            drafted=sum(one.drafted for one in drafters),
            forwards=sum(one.forwards for one in verifiers),
            verifier_use=sum(one.busy_s for one in verifiers) / (span * len(verifiers)),
            drafter_use=sum(one.busy_s for one in drafters) / (span * max(1, len(drafters))),
        )

    @property
    def tokens_per_round(self) -> float:
        """Block efficiency."""
        return self.tokens / self.rounds
