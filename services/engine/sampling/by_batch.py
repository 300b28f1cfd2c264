"""All rows at once in torch: for an accelerator, and for narrow rows anywhere.

The same functions as `by_row`, vectorised. Scores are [R, V] float32 and never
changed; sums that decide an edge, and the noise, are in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from services.engine.noise import to_exponential, word_rows
from services.engine.sampling.cuts import edges
from services.engine.sampling.head import Head
from services.engine.sampling.rows import NO_CHOICE, RowContext


def first_largest(scores: Tensor) -> Tensor:
    """Index of the first largest score per row, int64 [R]; NO_CHOICE where it is not finite."""
    chosen = scores.argmax(-1)
    best = scores.gather(-1, chosen[:, None])[:, 0]
    return torch.where(best.isfinite(), chosen, NO_CHOICE)


def highest(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest scores, int64 [R, count], best first, lower ids first.

    NO_CHOICE in place of -inf, and everywhere in a row with NaN or inf.
    """
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    ordered, ids = ordered[:, :count], ids[:, :count]
    found = ids.where(ordered.isfinite() & ordered[:, :1].isfinite(), NO_CHOICE)
    return torch.nn.functional.pad(found, (0, count - found.shape[-1]), value=NO_CHOICE)


def race(scores: Tensor, rows: Sequence[RowContext], head: Head, count: int) -> Tensor:
    """The `count` best of log p + Gumbel, int64 [R, count], best first; NO_CHOICE beyond."""
    perturbed = _perturbed(scores, rows, head)
    return first_largest(perturbed)[:, None] if count == 1 else highest(perturbed, count)


def near(scores: Tensor, chosen: Tensor, within: float | Tensor) -> Tensor:
    """Whether a score besides the `chosen` largest one is so near to it, bool [R]."""
    best = scores.gather(-1, chosen.clamp(min=0)[:, None])
    return (scores >= best - within).sum(-1) > 1


def close_race(
    scores: Tensor, rows: Sequence[RowContext], head: Head, within: float
) -> tuple[Tensor, Tensor]:
    """The best of log p + Gumbel, int64 [R]; whether another is near, in units of the scores."""
    perturbed = _perturbed(scores, rows, head)
    chosen = first_largest(perturbed)
    gaps = perturbed.new_tensor([[within / row.warping.temperature] for row in rows])
    return chosen, near(perturbed, chosen, gaps)


def perturb(scores: Tensor, words: Tensor) -> Tensor:
    """Score - log E in float64 [R, V], with the exponentials E of `words` (int32)."""
    return scores - to_exponential(words).log_()


def _perturbed(scores: Tensor, rows: Sequence[RowContext], head: Head) -> Tensor:
    words = word_rows([row.place for row in rows], head.ids(scores.device))
    return perturb(_warped(scores, rows), words)


def log_law(scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Log-probabilities [R, V] float32; all NaN where a row has no finite law."""
    return torch.log_softmax(_warped(scores, rows), dim=-1).to(torch.float32)


def top_law(scores: Tensor, rows: Sequence[RowContext], count: int) -> tuple[Tensor, Tensor]:
    """The law cut to its `count` best: indices int64, probabilities float32, [R, count]."""
    warped = _warped(scores, rows)
    ids = highest(warped, count)
    found = ids != NO_CHOICE
    ids = ids.masked_fill(~found, 0)
    cut = warped.gather(-1, ids).masked_fill(~found, -torch.inf)
    return ids, torch.softmax(cut, dim=-1).nan_to_num(0.0).to(torch.float32)


def _warped(scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Scores over temperature, float64 [R, V], with -inf below the row's edge."""
    laws = [row.warping for row in rows]
    scale = scores.new_tensor([[law.temperature] for law in laws], dtype=torch.float64)
    top = scores.amax(-1, keepdim=True).double()
    warped = scores.double().sub_(top).div_(scale)
    lowest = edges(scores, warped, laws)
    return warped if lowest is None else warped.masked_fill_(scores < lowest, -torch.inf)
