"""What one mask costs and brings, as measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MaskStats:
    """Sums over rounds of drafting and verifying, and over plain steps between them.

    `verified`: tokens that left the rounds, each a final one. Times are seconds.
    """

    verified: int = 0
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    plain_steps: int = 0
    plain_seconds: float = 0.0

    @property
    def seconds_per_token(self) -> float:
        """Time per verified token: what the search makes small."""
        return (self.draft_seconds + self.verify_seconds) / self.verified

    @property
    def plain_seconds_per_token(self) -> float:
        """The same of plain decoding, one token a step, at the same time."""
        return self.plain_seconds / self.plain_steps

    @property
    def cost(self) -> float:
        """Time per verified token, plain decoding = 1."""
        return self.seconds_per_token / self.plain_seconds_per_token

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def __add__(self, other: MaskStats) -> MaskStats:
        """Both together."""
        mine, theirs = asdict(self), asdict(other)
        return MaskStats(**{name: mine[name] + theirs[name] for name in mine})

    def described(self) -> dict[str, Any]:
        """As a mask's file has them."""
        return {
            "cost": round(self.cost, 4),
            "speedup": round(1 / self.cost, 4),
            "ms_per_token": round(1e3 * self.seconds_per_token, 3),
            "plain_ms_per_token": round(1e3 * self.plain_seconds_per_token, 3),
            "draft_ms_per_drafted_token": round(1e3 * self.draft_seconds / self.drafted, 3),
            "acceptance": round(self.acceptance, 4),
            "drafted_per_round": round(self.drafted / self.rounds, 3),
            "verified_per_round": round(self.verified / self.rounds, 3),
            "verified_tokens": self.verified,
        }


def total(figures: Iterable[MaskStats]) -> MaskStats:
    """All of them together."""
    return sum(figures, MaskStats())
