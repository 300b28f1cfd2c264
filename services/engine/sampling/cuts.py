"""Which tokens top_k, top_p and min_p leave, in that order; twice, and they agree.

    edge     of one row with numpy, on a CPU: nothing is sorted that cannot matter
    edges    of all rows at once with torch, on any device

Tokens that tie with the edge stay in, so that no law depends on the order of a sort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.contract.sampling import cuts
from services.contract.types import ResolvedSampling

_Row = NDArray[np.float32]

_LIGHT = 1e-3
"""A token with less than this share of 1 - top_p is not expected in a nucleus."""


def edge(row: _Row, law: ResolvedSampling) -> np.float32:
    """The lowest score that may be chosen of a row [V]; -inf where all may."""
    lowest = np.float32(-np.inf)
    top = row.max()
    if not (cuts(law) and np.isfinite(top)):
        return lowest
    if 0 < law.top_k < len(row):
        lowest = np.partition(row, len(row) - law.top_k)[len(row) - law.top_k]
    if law.top_p < 1.0:
        left = row if lowest == -np.inf else _above(row, lowest)
        lowest = max(lowest, _nucleus_edge(left, top, law))
    if law.min_p > 0.0:
        lowest = max(lowest, np.float32(float(top) + law.temperature * math.log(law.min_p)))
    return lowest


def _nucleus_edge(row: _Row, top: np.float32, law: ResolvedSampling) -> np.float32:
    """Lowest score in the nucleus of mass top_p (Holtzman et al., 1904.09751).

    The token that crosses top_p is the last one in.
    """
    weights = torch.from_numpy(row - top).mul_(1.0 / law.temperature).exp_()
    total = float(weights.sum())
    # Tokens so light that all together stay below 1 - top_p are outside: they need no sort.
    # The nucleus nearly always ends far above them.
    for light in (_LIGHT, 1.0 / len(row)):
        floor = float(top) + law.temperature * math.log((1.0 - law.top_p) * total * light)
        ordered = np.sort(_above(row, np.float32(floor)))[::-1]
        mass = np.exp((ordered - np.float64(top)) / law.temperature).cumsum()
        index = int(mass.searchsorted(law.top_p * total))
        if index < len(ordered):
            break
    return np.float32(ordered[min(index, len(ordered) - 1)])


def _above(row: _Row, lowest: np.float32) -> _Row:
    return row[np.flatnonzero(row >= lowest)]


def edges(scores: Tensor, warped: Tensor, laws: Sequence[ResolvedSampling]) -> Tensor | None:
    """The same of all rows, [R, 1]; None where no row leaves any token out.

    scores: [R, V] float32. warped: [R, V] float64, the scores less the best one, over temperature.
    """
    if not any(map(cuts, laws)):
        return None
    vocab = scores.shape[-1]
    ordered, order = scores.sort(dim=-1, descending=True)
    last = [[(law.top_k if 0 < law.top_k < vocab else vocab) - 1] for law in laws]
    lowest = ordered.gather(-1, torch.tensor(last, device=scores.device))
    top_p = warped.new_tensor([[law.top_p] for law in laws])
    mass = warped.gather(-1, order).exp_().masked_fill_(ordered < lowest, 0.0).cumsum(-1)
    crossing = (mass < top_p * mass[:, -1:]).sum(-1, keepdim=True).clamp_(max=vocab - 1)
    nucleus = ordered.gather(-1, crossing).masked_fill(top_p >= 1.0, -torch.inf)
    return lowest.maximum(nucleus).maximum(_min_p_edges(scores, laws))


def _min_p_edges(scores: Tensor, laws: Sequence[ResolvedSampling]) -> Tensor:
    scale = scores.new_tensor([[law.temperature] for law in laws], dtype=torch.float64)
    share = scores.new_tensor([[law.min_p] for law in laws], dtype=torch.float64)
    return (scores.amax(-1, keepdim=True) + scale * share.log()).to(torch.float32)
