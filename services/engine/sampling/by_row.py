"""One row after the other in numpy: on a CPU a wide row then stays in the cache.

The same functions as `by_batch`. Nothing is sorted, and no exact logarithm
taken, of tokens that cannot matter. Rows are float32 [V] and never changed.
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
from services.engine.noise import exponential_of, words_of
from services.engine.sampling.cuts import edge
from services.engine.sampling.head import Head
from services.engine.sampling.rows import NO_CHOICE, RowContext

_Row = NDArray[np.float32]
_Ids = NDArray[np.int64]
_Words = NDArray[np.uint32]

_AT_ONCE = 1 << 17
"""Scores that are compared at once."""

_FEW = 128
"""So few tokens are worked out exactly at once."""

_OFFSET = 32 * math.log(2.0)
_LOWEST = np.finfo(np.float32).min

_ROUNDING = 1e-3, 1e-6
"""Above what float32 loses in a bound: per unit of temperature, and of the best score."""


def first_largest(scores: Tensor) -> Tensor:
    """Index of the first largest score per row, int64 [R]; NO_CHOICE where it is not finite."""
    table = scores.numpy()
    chosen = table.argmax(-1)
    sound = np.isfinite(table[np.arange(len(table)), chosen])
    return torch.from_numpy(chosen if sound.all() else np.where(sound, chosen, NO_CHOICE))


def highest(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest scores, int64 [R, count], best first, lower ids first.

    NO_CHOICE in place of -inf, and everywhere in a row with NaN or inf.
    """
    return _padded([_best_of(row, count) for row in scores.numpy()], count)


def race(scores: Tensor, rows: Sequence[RowContext], head: Head, count: int) -> Tensor:
    """The `count` best of log p + Gumbel, int64 [R, count], best first; NO_CHOICE beyond."""
    each = zip(scores.numpy(), rows, strict=True)
    return _padded([_winners(scored, row, head, count) for scored, row in each], count)


def near(scores: Tensor, chosen: Tensor, within: float) -> Tensor:
    """Whether a score besides the `chosen` largest one is so near to it, bool [R]."""
    table = scores.numpy()
    least = table[np.arange(len(table)), chosen.numpy()][:, None] - np.float32(within)
    # No more of them at once than the cache holds.
    size = max(1, _AT_ONCE // table.shape[-1])
    counts = [
        np.count_nonzero(table[i : i + size] >= least[i : i + size], axis=-1)
        for i in range(0, len(table), size)
    ]
    return (
        torch.from_numpy(np.concatenate(counts) > 1) if counts else torch.zeros(0, dtype=torch.bool)
    )


def close_race(
    scores: Tensor, rows: Sequence[RowContext], head: Head, within: float
) -> tuple[Tensor, Tensor]:
    """The best of log p + Gumbel, int64 [R]; whether another is near, in units of the scores."""
    each = zip(scores.numpy(), rows, strict=True)
    found = [_closest(scored, row, head, within) for scored, row in each]
    return torch.tensor([ids for ids, _ in found]), torch.tensor([close for _, close in found])


def log_law(scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Log-probabilities [R, V] float32; all NaN where a row has no finite law."""
    laws = [row.warping for row in rows]
    cut = {i for i, law in enumerate(laws) if cuts(law)}
    whole = [i for i in range(len(rows)) if i not in cut]
    if not cut:
        return _whole_laws(scores, laws)
    result = torch.empty_like(scores)
    if whole:
        result[whole] = _whole_laws(scores[whole], [laws[i] for i in whole])
    for i in cut:
        _write_cut_law(result[i].numpy(), scores[i].numpy(), laws[i])
    return result


def top_law(scores: Tensor, rows: Sequence[RowContext], count: int) -> tuple[Tensor, Tensor]:
    """The law cut to its `count` best: indices int64, probabilities float32, [R, count]."""
    ids = np.zeros((len(rows), count), dtype=np.int64)
    mass = np.zeros((len(rows), count), dtype=np.float32)
    for i, (scored, row) in enumerate(zip(scores.numpy(), rows, strict=True)):
        best = _best_of(scored, count)
        best = best[scored[best] >= edge(scored, row.warping)]
        ids[i, : len(best)] = best
        mass[i, : len(best)] = _shares(scored[best], row.warping)
    return torch.from_numpy(ids), torch.from_numpy(mass)


# --- Laws --------------------------------------------------------------------------


def _whole_laws(scores: Tensor, laws: Sequence[ResolvedSampling]) -> Tensor:
    if any(law.temperature != 1.0 for law in laws):
        scores = scores / torch.tensor([[law.temperature] for law in laws])
    return torch.log_softmax(scores, dim=-1)


def _write_cut_law(result: _Row, row: _Row, law: ResolvedSampling) -> None:
    top = row.max()
    if not np.isfinite(top):
        result.fill(np.nan)
        return
    kept = np.flatnonzero(row >= edge(row, law))
    gaps = (row[kept] - np.float64(top)) / law.temperature
    result.fill(-np.inf)
    result[kept] = gaps - np.log(np.exp(gaps).sum())


def _shares(scores: _Row, law: ResolvedSampling) -> NDArray[np.float64]:
    """Probabilities of `scores`, best first, among themselves."""
    if len(scores) == 0:
        return np.zeros(0)
    mass = np.exp((scores - np.float64(scores[0])) / law.temperature)
    return np.asarray(mass / mass.sum())


def _best_of(row: _Row, count: int) -> _Ids:
    """Indices of the `count` largest finite scores, best first; none of a row with NaN or inf."""
    if count == 1 or not np.isfinite(row.max()):
        best = row.argmax()
        return np.array([best] if np.isfinite(row[best]) else [], dtype=np.int64)
    edge = np.partition(row, -count)[-count] if count < len(row) else -np.inf
    kept = np.flatnonzero((row >= edge) & (row > -np.inf))
    return kept[np.argsort(-row[kept], kind="stable")[:count]]


# --- The race: argmax log p - log E ------------------------------------------------


def _winners(row: _Row, context: RowContext, head: Head, count: int) -> _Ids:
    """Indices of the `count` best, best first; none of a row without a finite law."""
    ids, exact = _fastest(row, context, head, count)
    return ids[np.argsort(-exact, kind="stable")[:count]]


def _closest(row: _Row, context: RowContext, head: Head, within: float) -> tuple[int, bool]:
    """The best, NO_CHOICE without a finite law; whether another is within so much of it."""
    ids, exact = _fastest(row, context, head, 1, within)
    if not len(ids):
        return NO_CHOICE, False
    best = exact.argmax()
    close = exact >= exact[best] - within / context.warping.temperature
    return int(ids[best]), bool(np.count_nonzero(close) > 1)


def _fastest(
    row: _Row, context: RowContext, head: Head, count: int, within: float = 0.0
) -> tuple[_Ids, NDArray[np.float64]]:
    """Indices, in order, that hold the `count` best and few others; score / T - log E of each.

    With all that are near the best ones. None of a row without a finite law.
    """
    top = row.max()
    if not np.isfinite(top):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    law, place = context.warping, context.place
    lowest = edge(row, law)
    if lowest == -np.inf:
        kept, words = None, words_of(*place, head.folded())
    else:
        kept = np.flatnonzero(row >= lowest)
        row, words = row[kept], words_of(*place, head.folded()[kept])
    if len(row) <= _FEW:
        runners = np.arange(len(row))
    else:
        runners = _contenders(row, top, law.temperature, words, count, within)
    exact = _perturbed(row[runners], top, law.temperature, words[runners])
    sound = np.isfinite(exact)
    ids = runners if kept is None else kept[runners]
    return ids[sound], exact[sound]


def _contenders(
    row: _Row, top: np.float32, temperature: float, words: _Words, count: int, within: float
) -> _Ids:
    """Indices, in order, that hold the `count` best of score / T - log E and few others.

    E = -log(1 - U) >= U, so score - T log U in float32 is a bound from above, and
    the exact values at the `count` best bounds say which others can matter. So are all that are
    not more than `within` worse, in units of the scores.
    """
    # `words` lack the 2**-32 of U, so the bound lacks 32 T log 2.
    noise = torch.from_numpy(words.astype(np.float32)).add_(0.5).log_()
    bound = torch.sub(torch.from_numpy(row), noise, alpha=temperature, out=noise).numpy()
    leaders = _best_of(bound, count)
    reached = float(_perturbed(row[leaders], top, temperature, words[leaders]).min())
    slack = temperature * _ROUNDING[0] + abs(float(top)) * _ROUNDING[1] + within
    limit = float(top) + temperature * (reached - _OFFSET) - slack
    return np.flatnonzero(bound >= max(np.float32(limit), _LOWEST))


def _perturbed(
    row: _Row, top: np.float32, temperature: float, words: _Words
) -> NDArray[np.float64]:
    gaps = (row - np.float64(top)) / temperature
    return np.asarray(gaps - np.log(exponential_of(words)))


def _padded(found: Sequence[_Ids], count: int) -> Tensor:
    table = np.full((len(found), count), NO_CHOICE, dtype=np.int64)
    for i, ids in enumerate(found):
        table[i, : len(ids)] = ids
    return torch.from_numpy(table)
