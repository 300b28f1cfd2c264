"""Texts gathered for one step of a head's training: rows of all texts one after the other.

Row i of a text has the states of token i and the embedding of token i + 1; the distribution known
after the first i + 2 tokens is what it learns. The rows from the first to the last one with such
a distribution are *drafted*; those before them are only attended to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.training.distill.texts import Text

#: States [count, width] of the first tokens of the text with this number.
States = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one text lies: its rows [begin, end), of them drafted ones the last `drafted`."""

    begin: int
    end: int
    drafted: int

    @property
    def first(self) -> int:
        """Position of the first drafted row in the text."""
        return self.end - self.begin - self.drafted


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows of some texts.

    `states` [K, layers x width], `next_ids` and `positions` int64 [K]: of all rows. `drafted`
    int64 [N]: which of them are drafted. For each distribution: `rows` int64 [R], which drafted
    row learns it; `offsets` int64 [R], how many drafted rows of its text come before; `columns`
    int64 and `probabilities` float32 [R, n], as `Batch` has them; `best` int64 [R].
    """

    states: Tensor
    next_ids: Tensor
    positions: Tensor
    drafted: Tensor
    pieces: Sequence[Piece]
    rows: Tensor
    offsets: Tensor
    columns: Tensor
    probabilities: Tensor
    best: Tensor

    def to(self, device: torch.device) -> Lesson:
        """A copy on a device."""
        names = (field.name for field in fields(self) if field.name != "pieces")
        moved = {name: getattr(self, name).to(device) for name in names}
        return Lesson(pieces=self.pieces, **moved)


def columns_of(head_ids: Tensor, vocab_size: int) -> Tensor:
    """The head's row of each token of the vocabulary, -1 for one that it lacks."""
    columns = torch.full((vocab_size,), -1, dtype=torch.int64)
    columns[head_ids] = torch.arange(len(head_ids))
    return columns


def drafts_of(text: Text) -> NDArray[np.bool_]:
    """Which distributions of a text a row can learn: it needs a token before the last."""
    return text.prefixes >= 2


def lesson_of(texts: Sequence[Text], states: States, columns: Tensor) -> Lesson | None:
    """The rows of these texts; None where none of them has anything to learn."""
    texts = [text for text in texts if drafts_of(text).any()]
    if not texts:
        return None
    known = [text.prefixes[drafts_of(text)].astype(np.int64) for text in texts]
    pieces = _pieces(known)
    sizes = [piece.end - piece.begin for piece in pieces]
    before = np.cumsum([0, *(piece.drafted for piece in pieces)])
    offsets = [prefixes - prefixes[0] for prefixes in known]
    laws = [drafts_of(text) for text in texts]
    ids = np.concatenate([text.law_ids[law] for text, law in zip(texts, laws, strict=True)])
    logs = np.concatenate([text.law_logs[law] for text, law in zip(texts, laws, strict=True)])
    found = columns[torch.from_numpy(ids.astype(np.int64))]
    return Lesson(
        torch.cat([states(text.number, size) for text, size in zip(texts, sizes, strict=True)]),
        _joined([text.token_ids[1 : size + 1] for text, size in zip(texts, sizes, strict=True)]),
        _joined([np.arange(size) for size in sizes]),
        _joined([np.arange(piece.end - piece.drafted, piece.end) for piece in pieces]),
        pieces,
        _joined([start + o for start, o in zip(before, offsets, strict=False)]),
        _joined(offsets),
        found.clamp_min(0),
        torch.from_numpy(logs).float().exp() * (found >= 0),
        found[:, 0],
    )


def _pieces(known: Sequence[NDArray[np.int64]]) -> list[Piece]:
    pieces: list[Piece] = []
    begin = 0
    for prefixes in known:
        end = begin + int(prefixes[-1]) - 1
        pieces.append(Piece(begin, end, int(prefixes[-1] - prefixes[0]) + 1))
        begin = end
    return pieces


def _joined(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
