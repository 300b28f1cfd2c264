"""The law of each row of a forward pass, whole or cut, and draws from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.ngram_file import DRAFTED, DraftLaw, draft_law
from services.engine.sampling.adjust import adjusted
from services.engine.sampling.head import Head, whole_head
from services.engine.sampling.paths import parts
from services.engine.sampling.rows import NO_CHOICE, RowContext


def log_law(logits: Tensor, rows: Sequence[RowContext], head: Head | None = None) -> Tensor:
    """Log-probabilities [R, V] float32 of the law that each row is drawn from.

    `head`: what the columns stand for, if not for all tokens.

    After logit_bias, penalties, min_tokens, temperature and cuts;
    -inf for a token that may not be chosen. Tokens that tie with the last one
    kept stay in, so that no law depends on the order of a sort. A GREEDY row
    gets the law of its scores after min_tokens. All NaN without a finite law.
    """
    laws = [path.log_law(scores, part) for path, scores, part in parts(logits, rows, head)]
    return torch.cat(laws) if laws else torch.empty_like(logits)


def top_law(
    logits: Tensor, rows: Sequence[RowContext], n: int, head: Head | None = None
) -> tuple[Tensor, Tensor]:
    """The law of each row cut to its `n` best tokens and renormalised: what a drafter draws from.

    Returns ids int64 [R, n] and probabilities float32 [R, n], best first, the
    lower id first in a tie; the head's first id with probability 0 where the law
    has fewer tokens, or the row no finite law.
    """
    head = head or whole_head(logits.shape[-1])
    ids = [torch.empty((0, n), dtype=torch.int64, device=logits.device)]
    mass = [torch.empty((0, n), dtype=torch.float32, device=logits.device)]
    for path, scores, part in parts(logits, rows, head):
        own_ids, own_mass = path.top_law(scores, part, n)
        ids.append(head.tokens(own_ids))
        mass.append(own_mass)
    return torch.cat(ids), torch.cat(mass)


def kept_laws(laws: Tensor, head: Head) -> list[DraftLaw]:
    """What is kept of a draft model's laws [R, V], log-probabilities in the head's columns."""
    logs, columns = torch.topk(laws, min(DRAFTED, laws.shape[-1]))
    ids = head.tokens(columns)
    return [draft_law(*pair) for pair in zip(ids.tolist(), logs.tolist(), strict=True)]


def forbids_all(logits: Tensor, row: RowContext) -> bool:
    """Whether a sound row of `logits` [V] has no token left, once bias and masks are applied."""
    sound = not bool(logits.isnan().any() | logits.isposinf().any())
    if not (sound and bool(logits.isfinite().any())):
        return False
    scores = adjusted(logits[None], [row], whole_head(len(logits)))
    return bool(scores.isneginf().all())


def draw(p: Tensor, u: Sequence[float]) -> list[int]:
    """One index per row of `p` [R, N] by inversion of its cumulated mass in float64.

    `p` need not sum to 1. With `u` in [0, 1), one number a row, the index is the
    first whose cumulated mass exceeds u times the total; never one of mass 0.
    NO_CHOICE for a row that holds NaN or inf, or no mass.
    """
    if p.device.type == "cpu":
        return [_inverted(row, number) for row, number in zip(p.numpy(), u, strict=True)]
    return draw_in_parallel(p, u)


def draw_in_parallel(p: Tensor, u: Sequence[float]) -> list[int]:
    """`draw` on an accelerator, where a cumulated sum may round unevenly."""
    # An index of mass 0 must not seem to exceed the sum before it.
    cumulated = p.to(torch.float64).cumsum(-1).masked_fill_(p <= 0, 0.0)
    total = cumulated.amax(-1, keepdim=True)
    numbers = torch.as_tensor(u, dtype=torch.float64, device=p.device)
    index = (cumulated > total * numbers[:, None]).to(torch.uint8).argmax(-1)
    return torch.where(total[:, 0].isfinite() & (total[:, 0] > 0), index, NO_CHOICE).tolist()


def _inverted(mass: NDArray[np.floating], u: float) -> int:
    # Where the mass is 0 the sum stays as it is, so such an index is never the first beyond;
    # for u < 1 the product rounds below the total, so some index is.
    cumulated = mass.cumsum(dtype=np.float64)
    total = cumulated[-1]
    if not (np.isfinite(total) and total > 0):
        return NO_CHOICE
    return int(cumulated.searchsorted(u * total, side="right"))
