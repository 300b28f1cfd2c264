"""The head's vocabulary: the tokens to which the target gives most probability.

A frequency-ranked vocabulary as in FR-Spec (Zhao et al., 2502.14856), ranked by the
distributions themselves rather than by the tokens drawn from them: the same ranking in
the mean, with less noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.training.distill.texts import Text


@dataclass(frozen=True, slots=True)
class Head:
    """Token ids int64 [m], ascending, and the share of the distributions' mass that falls on them.

    The share is a lower bound: of each distribution only the most likely tokens are known.
    """

    ids: Tensor
    mass: float


def law_mass(texts: Iterable[Text], vocab_size: int) -> NDArray[np.float64]:
    """Summed probability of every token over all distributions of the texts, [V]."""
    mass = np.zeros(vocab_size)
    for text in texts:
        np.add.at(mass, text.law_ids, np.exp(text.law_logs.astype(np.float64)))
    return mass


def frequent(texts: Iterable[Text], vocab_size: int, size: int, always: Iterable[int]) -> Head:
    """The `size` tokens of most mass, among them all of `always`; the lower id wins a tie."""
    texts = list(texts)
    mass = law_mass(texts, vocab_size)
    rank = mass.copy()
    rank[list(always)] = np.inf
    ids = np.sort(np.argsort(-rank, kind="stable")[:size])
    laws = sum(len(text.prefixes) for text in texts)
    return Head(torch.from_numpy(ids), min(1.0, float(mass[ids].sum()) / max(1, laws)))
