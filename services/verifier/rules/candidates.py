"""Recursive rejection among the children of a node of a tree.

Yang et al., 2401.06706 (MCSD); Miao et al., 2305.09781 (SpecInfer), multi-step
speculative sampling:

    for each candidate x, in the order in which it was drawn from q:
        accept it iff u < p(x) / q(x), and descend
        else p <- norm((p - q)+)
             and, without replacement, q(x) <- 0, q <- norm(q)
    none accepted: the recovered token has the law p

p is kept unnormalised and on q's N tokens alone: (p - mass q)+ in place of the
normalised form leaves every other token at its original mass, so a candidate
costs N and not V.
"""

from __future__ import annotations

import torch
from torch import Tensor


def first_accepted(
    p: Tensor, q: Tensor, slots: Tensor, u: Tensor, without_replacement: Tensor
) -> tuple[Tensor, Tensor]:
    """Which candidate of each node is accepted, int64 [B], -1 = none; and the residual.

    p: [B, N] float64, the target's law at q's tokens, a part of its whole mass 1.
    q: [B, N] float64, the law that the first candidate was drawn from.
    slots: [B, C] int64, the candidates' places in q, in draw order; -1 = no more.
    u: [B, C] float64 in [0, 1), independent.
    without_replacement: [B] bool.
    The residual [B, N] is p at q's tokens after the rejections; tokens outside q's
    support keep the mass that they had.
    """
    outside = (1 - p.sum(-1)).clamp(min=0)
    taken = torch.full_like(slots[:, 0], -1)
    for candidate, slot in enumerate(slots.unbind(-1)):
        place = slot.clamp(min=0)[:, None]
        q = q / q.sum(-1, keepdim=True)
        mass = p.sum(-1, keepdim=True) + outside[:, None]
        # Where nothing is left the ratio is 0 / 0, which accepts nothing.
        ratio = (p.gather(-1, place) / (mass * q.gather(-1, place)))[:, 0]
        tried = (slot >= 0) & (taken < 0)
        hit = tried & (u[:, candidate] < ratio)
        taken = torch.where(hit, candidate, taken)
        missed = (tried & ~hit)[:, None]
        p = torch.where(missed, (p - mass * q).clamp(min=0), p)
        q = torch.where(without_replacement[:, None], q.scatter(-1, place, 0.0), q)
    return taken, p
