"""Laws over the whole vocabulary, float64 [V], of the one token that a block still emits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.engine.sampling import NO_CHOICE


def target_law(log_p: Tensor) -> Tensor:
    """The target's law, float64 [V]. log_p: [V], its logarithm."""
    law = log_p.exp().double()
    return law.div_(law.sum())


def residual_law(log_p: Tensor, token_ids: Sequence[int], kept: Tensor) -> Tensor:
    """The law of a recovered token, float64 [V].

    log_p: [V], the target's log-law.
    token_ids: N tokens, the draft law's support.
    kept: [N] float64, what the rejections left of the target's mass at those tokens;
    every other token keeps its own. Nothing left at all: the target's law, which
    then equals the draft's.
    """
    law = log_p.exp().double()
    law[torch.tensor(token_ids, device=law.device)] = kept.to(law.device)
    total = float(law.sum())
    return law.div_(total) if total > 0 else target_law(log_p)


def own_sample_law(log_p: Tensor, token: int) -> Tensor:
    """All mass on the target's own sample, float64 [V]; NaN if it had none (NO_CHOICE).

    log_p: [V], for its size and device.
    """
    law = torch.zeros(log_p.shape, dtype=torch.float64, device=log_p.device)
    if token == NO_CHOICE:
        return law.fill_(torch.nan)
    law[token] = 1.0
    return law
