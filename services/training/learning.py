"""What is minimised and measured: how far a drafter's distribution is from its target's.

The chance that a drafted token is accepted is sum(min(p, q)), one less the total
variation distance of the target's p and the draft's q (Leviathan et al., 2211.17192,
section 3.3). Total variation has almost no gradient where the distributions do not overlap
yet, so it is mixed with the Kullback-Leibler divergence, which has one (DistillSpec,
Zhou et al., 2310.08461, compares them).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Weight of total variation in what is learnt; see `distance`.
VARIATION = 0.75


@dataclass(frozen=True, slots=True)
class Score:
    """Sums over `positions`: of sum(min(p, q)), and of agreeing best tokens."""

    positions: int = 0
    overlap: float = 0.0
    agreed: float = 0.0

    def __add__(self, other: Score) -> Score:
        return Score(
            self.positions + other.positions,
            self.overlap + other.overlap,
            self.agreed + other.agreed,
        )

    @property
    def acceptance(self) -> float:
        """Mean sum(min(p, q)): the chance that a token drawn from q is accepted."""
        return self.overlap / max(1, self.positions)

    @property
    def greedy(self) -> float:
        """Share of positions where both distributions have the same best token."""
        return self.agreed / max(1, self.positions)


def distance(logits: Tensor, columns: Tensor, p: Tensor, variation: float = VARIATION) -> Tensor:
    """How far q of `logits` [R, m] is from p [R, n] of the tokens `columns` [R, n], per row [R].

    `variation`: weight of the chance of a rejection (twice, which is the L1 distance of whole
    distributions); the rest is KL(p || q), p renormalised over the columns of q.
    """
    logs = logits.log_softmax(-1).gather(-1, columns)
    share = p / p.sum(-1, keepdim=True).clamp_min(1e-9)
    divergence = -(share * logs).sum(-1) - torch.special.entr(share).sum(-1)
    rejected = 1.0 - torch.minimum(p, logs.exp()).sum(-1)
    return torch.lerp(divergence, 2.0 * rejected, variation)


@torch.no_grad()
def score_of(logits: Tensor, columns: Tensor, p: Tensor, best: Tensor) -> Score:
    """How well `logits` [R, m] do where p [R, n] is that of `columns` [R, n].

    `best` [R]: the column of the target's likeliest token, -1 without.
    """
    q = logits.softmax(-1).gather(-1, columns)
    agreed = (logits.argmax(-1) == best).sum()
    return Score(len(logits), float(torch.minimum(p, q).sum()), float(agreed))
