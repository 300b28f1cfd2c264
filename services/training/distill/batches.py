"""Texts gathered into batches of like length, in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.training.distill.texts import Text

#: Texts are sorted by length within windows of this many batches, so that padding stays small.
_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Some texts, padded on the right to [B, T].

    `rows` int64 [R]: places in the flattened batch after which a distribution is known.
    Shapes of the distributions: columns int64 and probabilities float32, both [R, n]; a
    column is a row of the student's head, and a token that the head lacks has
    probability 0. `best` int64 [R]: column of the most likely token, -1 without.
    """

    token_ids: Tensor
    rows: Tensor
    columns: Tensor
    probabilities: Tensor
    best: Tensor

    @property
    def positions(self) -> int:
        """How many distributions there are to learn from."""
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """A copy on a device."""
        parts = self.token_ids, self.rows, self.columns, self.probabilities, self.best
        return Batch(*(part.to(device) for part in parts))


class Collator:
    """Makes batches for a head of these tokens (ascending ids [m])."""

    def __init__(self, head_ids: Tensor, vocab_size: int) -> None:
        self._column = torch.full((vocab_size,), -1, dtype=torch.int64)
        self._column[head_ids] = torch.arange(len(head_ids))

    def __call__(self, texts: Sequence[Text]) -> Batch:
        """One batch of all these texts."""
        longest = max(int(text.prefixes[-1]) for text in texts)
        token_ids = torch.zeros((len(texts), longest), dtype=torch.int64)
        for line, text in zip(token_ids, texts, strict=True):
            tokens = torch.from_numpy(text.token_ids[:longest].astype(np.int64))
            line[: len(tokens)] = tokens
        rows = [i * longest + text.prefixes.astype(np.int64) - 1 for i, text in enumerate(texts)]
        ids = torch.from_numpy(np.concatenate([text.law_ids for text in texts]).astype(np.int64))
        logs = torch.from_numpy(np.concatenate([text.law_logs for text in texts]))
        columns = self._column[ids]
        known = columns >= 0
        return Batch(
            token_ids,
            torch.from_numpy(np.concatenate(rows)),
            columns.clamp_min(0),
            logs.float().exp() * known,
            columns[:, 0],
        )


def epoch(texts: Sequence[Text], positions: int, seed: int) -> Iterator[Sequence[Text]]:
    """All texts once, in batches of about `positions` distributions, shuffled by `seed`."""
    order = np.random.default_rng(seed).permutation(len(texts))
    sizes = np.cumsum([len(texts[i].prefixes) for i in order])
    window = np.searchsorted(
        sizes, np.arange(1, sizes[-1] // (positions * _WINDOW) + 1) * positions * _WINDOW
    )
    batches = [
        batch
        for part in np.split(order, window)
        if len(part)
        for batch in _alike([texts[i] for i in part], positions)
    ]
    for i in np.random.default_rng(seed + 1).permutation(len(batches)):
        yield batches[i]


def _alike(texts: Sequence[Text], positions: int) -> Iterator[Sequence[Text]]:
    """The texts by length, cut whenever `positions` distributions are together."""
    batch: list[Text] = []
    for text in sorted(texts, key=lambda text: len(text.token_ids)):
        batch.append(text)
        if sum(len(one.prefixes) for one in batch) >= positions:
            yield batch
            batch = []
    if batch:
        yield batch
