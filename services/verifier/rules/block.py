"""Block verification (Sun et al., 2403.10444, algorithm 2), in logarithms.

With p_0 = 1, target law M_b and draft law M_s of a block of g tokens:

    p_i = min(1, p_{i-1} M_b(x_i) / M_s(x_i))
    R_i = sum_x (p_i M_b(x) - M_s(x))+        laws after x_1 .. x_i, for i < g
    h_i = R_i / (R_i + 1 - p_i)               1 where that is 0 / 0;  h_g = p_g
    t   = the last i with u_i < h_i, 0 if none: an earlier failure ends nothing
    the recovered token has the law norm((p_t M_b - M_s)+) after x_1 .. x_t

Given the draft, P(t >= i) = p_i on average over what follows x_i, and no valid
rule accepts more tokens in expectation.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_reach(log_ratio: Tensor) -> Tensor:
    """The logarithm of p_i for every token, float64 [B, K].

    log_ratio: [B, K] float64, ln M_b(x_i) - ln M_s(x_i).
    The recursion ln p_i = min(0, ln p_{i-1} + log_ratio_i) is a walk reflected at 0
    (Lindley): its running sum less the highest point above 0 so far.
    """
    total = log_ratio.cumsum(-1)
    return total - total.cummax(-1).values.clamp(min=0)


def thresholds(log_reach: Tensor, log_p: Tensor, q: Tensor) -> Tensor:
    """h_i for every token, float64 [B, K].

    log_reach: [B, K] float64, ln p_i.
    log_p: [B, K, N] float64, ln M_b after x_i at the N tokens of M_s's support.
    q: [B, K, N] float64, M_s after x_i.
    Outside the support p_i M_b is all residual, so the vocabulary is never scanned.
    After the last token log_p is -inf throughout: R_g = p_g gives h_g = p_g.
    """
    reach = log_reach.exp()
    inside = (log_reach[..., None] + log_p).exp()
    outside = (reach - inside.sum(-1)).clamp(min=0)
    left = (inside - q).clamp(min=0).sum(-1) + outside
    either = left - log_reach.expm1()
    return torch.where(either == 0, 1.0, left / either)


def accepted(h: Tensor, u: Tensor) -> Tensor:
    """How many tokens of each chain are accepted, int64 [B].

    h: [B, K] float64, 0 behind a chain's end.
    u: [B, K] float64 in [0, 1), independent, and never used before.
    """
    counts = torch.arange(1, h.shape[-1] + 1)
    return ((u < h) * counts).amax(-1)
