"""The head's vocabulary: the tokens to which the target gives most probability.

A frequency-ranked vocabulary as in FR-Spec (Zhao et al., 2502.14856), ranked by the
distributions themselves rather than by the tokens drawn from them: the same ranking in
the mean, with less noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.training.texts import Text


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids int64 [m], ascending, and the share of the distributions' mass that falls on them.

    The share is a lower bound: of each distribution only the most likely tokens are known.
    """

    ids: Tensor
    mass: float


def frequent(
    texts: Sequence[Text], vocab_size: int, size: int, always: Iterable[int]
) -> Vocabulary:
    """The `size` tokens of most mass, among them all of `always`; the lower id wins a tie."""
    mass = np.zeros(vocab_size)
    for text in texts:
        np.add.at(mass, text.law_ids, np.exp(text.law_logs.astype(np.float64)))
    rank = mass.copy()
    rank[list(always)] = np.inf
    ids = np.sort(np.argsort(-rank, kind="stable")[:size])
    laws = sum(len(text.prefixes) for text in texts)
    return Vocabulary(torch.from_numpy(ids), min(1.0, float(mass[ids].sum()) / max(1, laws)))
