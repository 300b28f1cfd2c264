"""Laws of target and drafter that agree, and meet, exactly as often as asked.

p is the target's law at a place, q the drafter's. A drafted token is accepted with a chance of
Σ min(p, q), its *agreement* (Leviathan et al., 2211.17192, 3.5); a token that the target draws
by itself is the drafted one with Σ p·q, their *overlap*. Both have mass m on shared tokens; what
is left of p is on the first of these and on a token of its own, what is left of q on another:

    token         0       1 .. n-1   n             n+1
    p             m_0+r   m_i        1-agreement-r 0
    q             m_0     m_i        0             1-agreement

So Σ min(p, q) = Σ m, and Σ p·q = Σ m² + r·m_0. All of m on token 0 and r = 0 make agreement²:
more is had by a larger r, less by spreading m over the fewest tokens that allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

MOST_TOKENS = 63
"""Of one place, two of them not shared."""


@dataclass(frozen=True, slots=True)
class Laws:
    """Chances of as many tokens, in the same order; `draft` is q."""

    target: tuple[float, ...]
    draft: tuple[float, ...]

    @property
    def coupled(self) -> float:
        """The chance that both draw the same token by shared noise, as in COUPLED.

        Token i wins both races with 1 / Σ_j max(p_j / p_i, q_j / q_i).
        """
        pairs = list(zip(self.target, self.draft, strict=True))
        return sum(
            1.0 / sum(max(p / own, q / other) for p, q in pairs)
            for own, other in pairs
            if own and other
        )


def laws(agreement: float, overlap: float) -> Laws:
    """Both laws. Raises ValueError for an overlap that no such laws have.

    Not more than `agreement`, as p·q <= min(p, q), and not less than
    agreement² / (MOST_TOKENS - 2), with everything shared spread evenly.
    """
    least = agreement**2 / (MOST_TOKENS - 2)
    if not least <= overlap <= agreement:
        raise ValueError(
            f"an overlap of {overlap:g} is not within {least:.4g} and {agreement:g}, as it must "
            f"be with an agreement of {agreement:g}"
        )
    shared, moved = _shared(agreement, overlap), 0.0
    if overlap > agreement**2:
        moved = (overlap - agreement**2) / agreement
    left = 1.0 - agreement
    return Laws(
        (shared[0] + moved, *shared[1:], max(0.0, left - moved), 0.0),
        (*shared, 0.0, left),
    )


def _shared(agreement: float, overlap: float) -> tuple[float, ...]:
    """m: its squares are `overlap`, or less where one token has all of it."""
    if overlap >= agreement**2:
        return (agreement,)
    count = min(MOST_TOKENS - 2, ceil(agreement**2 / overlap))
    even = agreement / count
    more = sqrt(max(0.0, (overlap - agreement * even) * (count - 1) / count))
    return (even + more, *[max(0.0, even - more / (count - 1))] * (count - 1))
