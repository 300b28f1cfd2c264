"""Token-level rejection sampling (Leviathan, Kalman and Matias, 2211.17192, algorithm 1).

Draft token i is accepted iff u_i < p_i(x_i) / q_i(x_i), up to the first that is
not; there the recovered token has the law norm((p_i - q_i)+). Strictly less,
with u in [0, 1): a token that the target gives no mass is never accepted.
"""

from __future__ import annotations

from torch import Tensor


def accepted(log_ratio: Tensor, u: Tensor) -> Tensor:
    """How many tokens of each chain are accepted, int64 [B].

    log_ratio: [B, K] float64, ln p_i(x_i) - ln q_i(x_i); -inf behind a chain's end.
    u: [B, K] float64 in [0, 1), independent.
    """
    return (u < log_ratio.exp()).long().cumprod(-1).sum(-1)
