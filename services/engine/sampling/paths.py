"""Which of the two paths serves a tensor of scores: row by row, or the batch at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from services.engine.sampling import by_batch, by_row
from services.engine.sampling.adjust import adjusted
from services.engine.sampling.head import Head, whole_head
from services.engine.sampling.rows import RowContext

WIDE = 1024
"""Tokens from which a CPU works row by row. The choice of a path depends on device and
width alone, so that no row's outcome depends on its neighbours."""

_SCORES_AT_ONCE = 1 << 22


class Path(Protocol):
    """What both paths offer, on scores [R, V] float32 that they leave alone.

    Indices are columns; the noise of a column is that of its token in the head.
    """

    def first_largest(self, scores: Tensor) -> Tensor:
        """Index of the first largest score, int64 [R]."""

    def highest(self, scores: Tensor, count: int) -> Tensor:
        """Indices of the largest scores, best first, int64 [R, count]."""

    def race(self, scores: Tensor, rows: Sequence[RowContext], head: Head, count: int) -> Tensor:
        """The best of log p + Gumbel, best first, int64 [R, count]."""

    def near(self, scores: Tensor, chosen: Tensor, within: float) -> Tensor:
        """Whether a score besides the `chosen` largest one is so near to it, bool [R]."""

    def close_race(
        self, scores: Tensor, rows: Sequence[RowContext], head: Head, within: float
    ) -> tuple[Tensor, Tensor]:
        """The best of log p + Gumbel, int64 [R]; whether another is near, in units of scores."""

    def log_law(self, scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
        """Log-probabilities [R, V] float32."""

    def top_law(
        self, scores: Tensor, rows: Sequence[RowContext], count: int
    ) -> tuple[Tensor, Tensor]:
        """Indices int64 and probabilities float32 of the best tokens, [R, count]."""


def path_for(scores: Tensor) -> Path:
    """Row by row for wide rows on a CPU."""
    if scores.device.type == "cpu" and scores.shape[-1] >= WIDE:
        return by_row
    return by_batch


def parts(
    logits: Tensor, rows: Sequence[RowContext], head: Head | None = None
) -> Iterator[tuple[Path, Tensor, Sequence[RowContext]]]:
    """Adjusted scores and their rows, no more at once than fit the memory of a small step."""
    head = head or whole_head(logits.shape[-1])
    size = max(1, _SCORES_AT_ONCE // logits.shape[-1])
    for start in range(0, len(rows), size):
        own = rows[start : start + size]
        scores = adjusted(logits[start : start + size], own, head)
        yield path_for(scores), scores, own
