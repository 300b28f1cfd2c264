"""The token, or the best few tokens, that each row of a forward pass chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.engine.sampling.head import Head, whole_head
from services.common.engine.sampling.paths import Path, parts
from services.common.engine.sampling.rows import RowContext
from services.common.types import VerifyMode


def choose(logits: Tensor, rows: Sequence[RowContext], head: Head | None = None) -> list[int]:
    """The model's token per row of `logits` [R, V] float32; the first wins a tie.

    `head`: what the columns stand for, if not for all tokens.

    GREEDY takes the argmax. COUPLED takes argmax p/E with shared exponentials E,
    which is a draw from p (Gumbel-max; Daliri, Musco and Suresh, 2408.07978).
    NO_CHOICE for a row with NaN or inf, or without any finite score. Raises
    ValueError for a row of another mode: it has no choice of its own, and may
    come to draw again at the same position.
    """
    head = head or whole_head(logits.shape[-1])
    chosen: list[int] = []
    for path, scores, part in parts(logits, rows, head):
        chosen += head.tokens(_chosen(path, scores, part, head)).tolist()
    return chosen


def best(
    logits: Tensor, rows: Sequence[RowContext], count: int, head: Head | None = None
) -> Tensor:
    """The `count` highest scores per row after bias, penalties and min_tokens.

    Returns ids int64 [R, count], best first, the lower id first in a tie, padded
    with NO_CHOICE: the children of a greedy draft tree.
    """
    head = head or whole_head(logits.shape[-1])
    found = [path.highest(scores, count) for path, scores, _ in parts(logits, rows, head)]
    return head.tokens(_joined(found, logits, count))


def coupled_best(
    logits: Tensor, rows: Sequence[RowContext], count: int, head: Head | None = None
) -> Tensor:
    """The `count` best of log p + Gumbel per row, whatever the row's mode.

    Returns ids int64 [R, count], best first, padded with NO_CHOICE. The first is
    the sample that `choose` gives a coupled row. All `count` are a sample without
    replacement (Gumbel top-k; Kool, van Hoof and Welling, 1903.06059): the
    children of a coupled draft tree.
    """
    head = head or whole_head(logits.shape[-1])
    each = parts(logits, rows, head)
    found = [path.race(scores, part, head, count) for path, scores, part in each]
    return head.tokens(_joined(found, logits, count))


def _chosen(path: Path, scores: Tensor, rows: Sequence[RowContext], head: Head) -> Tensor:
    """One column per row, int64 [R]."""
    modes = {row.mode for row in rows}
    if modes == {VerifyMode.GREEDY}:
        return path.first_largest(scores)
    if modes == {VerifyMode.COUPLED}:
        return path.race(scores, rows, head, 1)[:, 0]
    if not all(mode.exact_match for mode in modes):
        raise ValueError("only greedy and coupled rows have a choice of their own")
    chosen = torch.empty(len(rows), dtype=torch.int64)
    for mode in modes:
        own = [i for i, row in enumerate(rows) if row.mode is mode]
        chosen[own] = _chosen(path, scores[own], [rows[i] for i in own], head).cpu()
    return chosen


def _joined(found: Sequence[Tensor], logits: Tensor, count: int) -> Tensor:
    none = torch.empty((0, count), dtype=torch.int64, device=logits.device)
    return torch.cat([none, *found])
