"""The target's own choice at every row of a forward pass.

One order of processing for every row, the same on drafter and verifier:
logit_bias, penalties, min_tokens, grammar, temperature, top_k, top_p, min_p.
Those not served yet are refused before a session opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.engine.noise import exponential_rows
from services.common.types import ResolvedSampling, VerifyMode

NO_CHOICE = -1
"""In place of a token where the model gave no finite law (NaN or infinity)."""

_NUCLEUS_GUESS = 256
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class RowContext:
    """How to choose at one row; `position` is the output index of the chosen token."""

    mode: VerifyMode
    sampling: ResolvedSampling
    seed: int
    position: int


def choose(logits: Tensor, rows: Sequence[RowContext]) -> list[int]:
    """The target's token per row of `logits` [R, V] float32; the first wins a tie.

    GREEDY takes the argmax. COUPLED takes argmax p/E with shared exponentials E,
    which is a draw from p (Gumbel-max; Daliri, Musco and Suresh, 2408.07978).
    A row with NaN, or without any finite logit, gives NO_CHOICE.
    """
    chosen: list[int] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        chosen += _choose_rows(logits[part], rows[part])
    return chosen


def warp(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Log-probabilities [R, V] float32 of the law each row is drawn from.

    GREEDY rows get the law of the masked logits: temperature, top_k and top_p do
    not bear on an argmax.
    """
    return torch.log_softmax(_filtered(logits, rows), dim=-1)


def _choose_rows(logits: Tensor, rows: Sequence[RowContext]) -> list[int]:
    scores = _filtered(logits, rows)
    coupled = [i for i, row in enumerate(rows) if row.mode is VerifyMode.COUPLED]
    if len(coupled) == len(rows):
        scores = _race(scores, rows)
    elif coupled:
        scores[coupled] = _race(scores[coupled], [rows[i] for i in coupled])
    chosen = _first_largest(scores)
    best = scores.gather(-1, chosen[:, None])[:, 0]
    return torch.where(best.isfinite(), chosen, NO_CHOICE).tolist()


def _first_largest(scores: Tensor) -> Tensor:
    """Index of the first largest score per row [R]; a NaN counts as largest."""
    if scores.device.type == "cpu":
        # numpy's is ten times as fast on a wide row.
        return torch.from_numpy(scores.numpy().argmax(-1))
    return scores.argmax(-1)


def _race(scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """p/E per token, [R, V]; the largest wins."""
    ids = torch.arange(scores.shape[-1], device=scores.device, dtype=torch.int32)
    noise = exponential_rows([(row.seed, row.position) for row in rows], ids)
    return torch.softmax(scores, dim=-1).div_(noise)


def _filtered(logits: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """Scores [R, V] with -inf where a token may not be chosen; `logits` is left alone."""
    scores = logits.clone()
    for i, row in enumerate(rows):
        if row.position < row.sampling.min_tokens and row.sampling.stop_token_ids:
            scores[i, list(row.sampling.stop_token_ids)] = -torch.inf
    for law, group in _grouped(rows):
        whole = len(group) == len(rows)
        part = _cut(scores if whole else scores[group], law)
        if whole:
            return part
        scores[group] = part
    return scores


def _grouped(rows: Sequence[RowContext]) -> Iterator[tuple[ResolvedSampling, list[int]]]:
    """Row numbers of the rows that sample, gathered by equal sampling parameters."""
    groups: dict[ResolvedSampling, list[int]] = {}
    for i, row in enumerate(rows):
        if row.mode is not VerifyMode.GREEDY:
            groups.setdefault(row.sampling, []).append(i)
    yield from groups.items()


def _cut(scores: Tensor, law: ResolvedSampling) -> Tensor:
    """Temperature, top_k, top_p on scores [R, V], all rows under one law."""
    if law.temperature != 1.0:
        scores = scores / law.temperature
    if 0 < law.top_k < scores.shape[-1]:
        lowest = torch.topk(scores, law.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < lowest, -torch.inf)
    if law.top_p < 1.0:
        scores = scores.masked_fill(scores < _nucleus_edge(scores, law), -torch.inf)
    return scores


def _nucleus_edge(scores: Tensor, law: ResolvedSampling) -> Tensor:
    """Lowest score inside the nucleus of mass top_p, [R, 1] (Holtzman et al., 1904.09751).

    Tokens that tie with the lowest one stay in, so the law never depends on the
    order of a sort. A few best tokens nearly always hold the nucleus; only rows
    where they do not are sorted whole.
    """
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    size = scores.shape[-1]
    guess = min(size, law.top_k if law.top_k > 0 else _NUCLEUS_GUESS)
    best = torch.topk(scores, guess, dim=-1).values
    edge, held = _edge_within(best, total, law.top_p)
    wide = _rows_where(~held) if guess < size else []
    if wide:
        ordered = torch.sort(scores[wide], dim=-1, descending=True).values
        edge[wide] = _edge_within(ordered, total[wide], law.top_p)[0]
    return edge


def _edge_within(ordered: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Edge [R, 1] by descending scores [R, n], and whether the nucleus ends within them [R]."""
    mass = torch.exp(ordered - total)
    before = mass.cumsum(dim=-1) - mass
    last = (before < top_p).sum(dim=-1, keepdim=True).clamp(min=1) - 1
    held = before[:, -1] + mass[:, -1] >= top_p
    return ordered.gather(-1, last), held


def _rows_where(flags: Tensor) -> list[int]:
    return [int(i) for i in flags.nonzero().flatten()]
