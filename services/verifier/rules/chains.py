"""Chains under STANDARD or BLOCK: ragged blocks as padded tensors, one rule for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.contract.types import VerifyMode
from services.engine.noise import Stream
from services.verifier.rules import block, standard
from services.verifier.rules.proposed import Stop
from services.verifier.rules.rows import Case, Laws


def judge_chains(cases: Sequence[Case], laws: Laws, mode: VerifyMode) -> list[Stop]:
    """Judge the usable prefix of each chain, one token at least, under one rule."""
    if not cases:
        return []
    lengths = [case.draft.usable_prefix for case in cases]
    rows, slots, u = _padded(cases, laws, lengths)
    log_p, q = laws.log_p[rows], laws.q[rows]
    drawn = log_p[:, :-1].gather(-1, slots) - q[:, :-1].gather(-1, slots).log()
    rule = _by_block if mode is VerifyMode.BLOCK else _by_token
    accepted, log_scale = rule(drawn[..., 0], log_p, q, u)
    kept = _left_over(log_p, q, log_scale, accepted)
    ends = zip(accepted.tolist(), lengths, kept, strict=True)
    return [
        Stop(tuple(range(count)), count, rest if count < length else None)
        for count, length, rest in ends
    ]


def _by_token(log_ratio: Tensor, _log_p: Tensor, _q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted tokens [B], and the logarithm of p's factor in the residual [B, K + 1]."""
    return standard.accepted(log_ratio, u), log_ratio.new_zeros(len(u), u.shape[-1] + 1)


def _by_block(log_ratio: Tensor, log_p: Tensor, q: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted tokens [B], and the logarithm of p's factor in the residual [B, K + 1]."""
    log_reach = block.log_reach(log_ratio)
    h = block.thresholds(log_reach, log_p[:, 1:], q[:, 1:])
    return block.accepted(h, u), torch.cat((log_reach.new_zeros(len(u), 1), log_reach), -1)


def _left_over(log_p: Tensor, q: Tensor, log_scale: Tensor, accepted: Tensor) -> Tensor:
    """(p - q / scale)+ at q's tokens in row `accepted` [B] of each chain, float64 [B, N].

    It is (scale p - q)+ over scale, so that all other tokens keep the mass they had.
    log_p, q: [B, K + 1, N]; log_scale: [B, K + 1].
    """
    at = torch.arange(len(accepted)), accepted
    growth = (-log_scale[at]).clamp(max=700).exp()
    return (log_p[at].exp() - q[at] * growth[:, None]).clamp(min=0)


def _padded(
    cases: Sequence[Case], laws: Laws, lengths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of the rows [B, K + 1], slots of the draft tokens [B, K, 1], uniforms [B, K]."""
    longest = max(lengths)
    rows, slots, u = [], [], []
    for case, length in zip(cases, lengths, strict=True):
        spare = longest - length
        number, usable = laws.index[case.number], case.draft.usable
        rows.append([number[row] for row in range(length)] + [laws.padding] * (spare + 1))
        slots.append([usable[row].slots for row in range(length)] + [(0,)] * spare)
        drawn = [case.block.uniform(Stream.ACCEPT, row, 0) for row in range(length)]
        u.append(drawn + [0.0] * spare)
    return torch.tensor(rows), torch.tensor(slots), torch.tensor(u, dtype=torch.float64)
