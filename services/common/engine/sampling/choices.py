"""The token, or the best few tokens, that each row of a forward pass chooses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.engine.sampling.paths import Path, parts
from services.common.engine.sampling.rows import RowContext
from services.common.types import VerifyMode


def choose(logits: Tensor, rows: Sequence[RowContext]) -> list[int]:
    """The target's token per row of `logits` [R, V] float32; the first wins a tie.

    GREEDY takes the argmax. COUPLED takes argmax p/E with shared exponentials E,
    which is a draw from p (Gumbel-max; Daliri, Musco and Suresh, 2408.07978).
    NO_CHOICE for a row with NaN or inf, or without any finite score. Raises
    ValueError for a row of another mode: it has no choice of its own, and may
    come to draw again at the same position.
    """
    chosen: list[int] = []
    for path, scores, part in parts(logits, rows):
        chosen += _chosen(path, scores, part)
    return chosen


def best(logits: Tensor, rows: Sequence[RowContext], count: int) -> Tensor:
    """The `count` highest scores per row after bias, penalties and min_tokens.

    Returns ids int64 [R, count], best first, the lower id first in a tie, padded
    with NO_CHOICE: the children of a greedy draft tree.
    """
    found = [path.highest(scores, count) for path, scores, _ in parts(logits, rows)]
    return _joined(found, logits, count)


def coupled_best(logits: Tensor, rows: Sequence[RowContext], count: int) -> Tensor:
    """The `count` best of log p + Gumbel per row, whatever the row's mode.

    Returns ids int64 [R, count], best first, padded with NO_CHOICE. The first is
    the sample that `choose` gives a coupled row. All `count` are a sample without
    replacement (Gumbel top-k; Kool, van Hoof and Welling, 1903.06059): the
    children of a coupled draft tree.
    """
    found = [path.race(scores, part, count) for path, scores, part in parts(logits, rows)]
    return _joined(found, logits, count)


def _chosen(path: Path, scores: Tensor, rows: Sequence[RowContext]) -> list[int]:
    modes = {row.mode for row in rows}
    if modes == {VerifyMode.GREEDY}:
        return path.first_largest(scores).tolist()
    if modes == {VerifyMode.COUPLED}:
        return path.race(scores, rows, 1)[:, 0].tolist()
    if not all(mode.exact_match for mode in modes):
        raise ValueError("only greedy and coupled rows have a choice of their own")
    chosen = [0] * len(rows)
    for mode in modes:
        own = [i for i, row in enumerate(rows) if row.mode is mode]
        for i, token in zip(own, _chosen(path, scores[own], [rows[i] for i in own]), strict=True):
            chosen[i] = token
    return chosen


def _joined(found: Sequence[Tensor], logits: Tensor, count: int) -> Tensor:
    none = torch.empty((0, count), dtype=torch.int64, device=logits.device)
    return torch.cat([none, *found])
