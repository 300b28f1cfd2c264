"""Which token each column of a row of scores stands for.

A whole head has a column per token of the vocabulary. An EAGLE-3 head has columns for m
frequent tokens only (FR-Spec, Zhao et al., 2502.14856). Everything is then computed on m
columns; noise, bias and penalties are those of the tokens, so the outcome is that of a row with
-inf elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.noise import fold
from services.engine.sampling.rows import NO_CHOICE

Ids = NDArray[np.int64]


class Head(Protocol):
    """Columns in ascending order of their tokens."""

    def __hash__(self) -> int:
        """By identity: what is worked out for a head is kept with it."""

    def __len__(self) -> int:
        """Columns."""

    def columns(self, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Column of each token [N], and whether it has one; any column where it has none."""

    def tokens(self, columns: Tensor) -> Tensor:
        """Token ids int64 of columns, in any shape; NO_CHOICE stays."""

    def ids(self, device: torch.device) -> Tensor:
        """Token ids int64 of all columns."""

    def folded(self) -> NDArray[np.uint32]:
        """The same as they enter the noise (`noise.fold`)."""

    def below(self, vocab_size: int) -> Head:
        """The leading columns, of token ids below `vocab_size`."""


class HasHead(Protocol):
    """The part of an engine that says which tokens it has logits of."""

    vocab_size: int
    head_ids: Tensor | None


class WholeHead:
    """Column i is token i."""

    def __init__(self, width: int) -> None:
        self._width = width

    def __len__(self) -> int:
        """Columns."""
        return self._width

    def columns(self, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """See `Head`."""
        return tokens, tokens.view(np.uint64) < self._width

    def tokens(self, columns: Tensor) -> Tensor:
        """See `Head`."""
        return columns

    def ids(self, device: torch.device) -> Tensor:
        """See `Head`."""
        return torch.arange(self._width, device=device)

    def folded(self) -> NDArray[np.uint32]:
        """See `Head`."""
        return _folded(self._width)

    def below(self, vocab_size: int) -> Head:
        """See `Head`."""
        return whole_head(min(vocab_size, self._width))


class PartHead:
    """Column i is token `ids[i]`; `ids` int64 [m] ascending."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids.cpu().numpy()
        self._on: dict[torch.device, Tensor] = {}
        self._words = fold(self._ids)
        self._below: dict[int, PartHead] = {}

    def __len__(self) -> int:
        """Columns."""
        return len(self._ids)

    def columns(self, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """See `Head`."""
        places = self._ids.searchsorted(tokens)
        places[places == len(self._ids)] = 0
        return places, self._ids[places] == tokens

    def tokens(self, columns: Tensor) -> Tensor:
        """See `Head`."""
        # NO_CHOICE indexes the last token, which is then replaced.
        return self.ids(columns.device)[columns].where(columns != NO_CHOICE, NO_CHOICE)

    def ids(self, device: torch.device) -> Tensor:
        """See `Head`."""
        if device not in self._on:
            self._on[device] = torch.from_numpy(self._ids).to(device)
        return self._on[device]

    def folded(self) -> NDArray[np.uint32]:
        """See `Head`."""
        return self._words

    def below(self, vocab_size: int) -> Head:
        """See `Head`."""
        width = int(self._ids.searchsorted(vocab_size))
        if width == len(self._ids):
            return self
        if width not in self._below:
            self._below[width] = PartHead(torch.from_numpy(self._ids[:width]))
        return self._below[width]


def head_of(engine: HasHead) -> Head:
    """What the columns of an engine's logits stand for."""
    ids = engine.head_ids
    return whole_head(engine.vocab_size) if ids is None else PartHead(ids)


@lru_cache(maxsize=64)
def whole_head(width: int) -> WholeHead:
    """The head of a row that has a column per token."""
    return WholeHead(width)


@lru_cache(maxsize=8)
def _folded(width: int) -> NDArray[np.uint32]:
    return fold(np.arange(width))
