"""logit_bias, penalties, min_tokens, token limits, grammar masks: edits of scores, before any law.

All rows are edited together, on the device where the logits lie. Token ids
without a column (a smaller draft model, a part of a head) are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.contract.sampling import counts
from services.engine.sampling.bad_words import BadWords, compiled
from services.engine.sampling.head import Head, Ids
from services.engine.sampling.history import History
from services.engine.sampling.rows import RowContext

_Values = NDArray[np.float32]


def adjusted(logits: Tensor, rows: Sequence[RowContext], head: Head) -> Tensor:
    """Scores [R, V] that the argmax or the law is taken of; `logits` where nothing is edited.

    Each row sees the prefix of its own position: history, then path.
    """
    biased = [i for i, row in enumerate(rows) if row.sampling.logit_bias]
    penalised = [i for i, row in enumerate(rows) if counts(row.sampling)]
    unfinished = [i for i, row in enumerate(rows) if _unfinished(row)]
    limited = [i for i, row in enumerate(rows) if row.sampling.limits_tokens]
    constrained = [i for i, row in enumerate(rows) if row.matcher is not None]
    if not (biased or penalised or unfinished or limited or constrained):
        return logits
    scores = logits.clone(memory_format=torch.contiguous_format)
    _add_bias(scores, rows, biased, head)
    _penalise(scores, rows, penalised, head)
    _forbid_stops(scores, rows, unfinished, head)
    _keep_allowed(scores, rows, [i for i in limited if rows[i].sampling.allowed_token_ids], head)
    _forbid_words(scores, rows, [i for i in limited if rows[i].sampling.bad_words], head)
    _constrain(scores, rows, constrained, head)
    return scores


def _unfinished(row: RowContext) -> bool:
    """Whether stops are masked: not where a finished form allows nothing else."""
    if row.position >= row.sampling.min_tokens:
        return False
    return row.matcher is None or not row.matcher.must_end(row.path)


def _add_bias(scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head) -> None:
    if not which:
        return
    biases = [_bias(rows[i].sampling.logit_bias, head) for i in which]
    places = [columns + i * len(head) for i, (columns, _) in zip(which, biases, strict=True)]
    values = np.concatenate([values for _, values in biases])
    scores.view(-1).index_add_(0, _on(scores, np.concatenate(places)), _on(scores, values))


def _penalise(scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head) -> None:
    """Repetition as in CTRL (Keskar et al., 1909.05858, 4.1), then OpenAI's two penalties."""
    if not which:
        return
    seen = [_penalties(rows[i], i, head) for i in which]
    places, factors, drops = (_on(scores, np.concatenate(part)) for part in zip(*seen, strict=True))
    flat = scores.view(-1)
    old = flat[places]
    flat[places] = torch.where(old < 0, old * factors, old / factors) - drops


def _penalties(row: RowContext, index: int, head: Head) -> tuple[Ids, _Values, _Values]:
    """Places in the flattened scores of the tokens seen; what divides and what drops them."""
    law = row.sampling
    columns, counts = _counts(row, head)
    drops = np.float32(law.frequency_penalty) * counts.astype(np.float32)
    drops += np.float32(law.presence_penalty) * (counts > 0)
    return columns + index * len(head), np.full_like(drops, law.repetition_penalty), drops


def _counts(row: RowContext, head: Head) -> tuple[Ids, Ids]:
    """Columns of the tokens that some penalty of the row may touch, with their counts."""
    ids, counts = (row.history or History(())).counts(row.path)
    columns, touched = head.columns(ids)
    if row.sampling.repetition_penalty == 1.0:
        touched &= counts > 0
    return (columns, counts) if touched.all() else (columns[touched], counts[touched])


def _forbid_stops(
    scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head
) -> None:
    _forbid(scores, [_columns(rows[i].sampling.stop_token_ids, head) for i in which], which, head)


def _keep_allowed(
    scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head
) -> None:
    if not which:
        return
    laws = {id(rows[i].sampling): rows[i].sampling for i in which}
    columns = {key: _columns(law.allowed_token_ids, head) for key, law in laws.items()}
    kept = _places([columns[id(rows[i].sampling)] for i in which], which, head)
    places, flat = _on(scores, kept), scores.view(-1)
    allowed = flat[places]
    scores[_on(scores, np.array(which))] = -torch.inf
    flat[places] = allowed


def _forbid_words(
    scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head
) -> None:
    laws = {id(rows[i].sampling): rows[i].sampling for i in which}
    words = {key: compiled(law.bad_words) for key, law in laws.items()}
    ends = [_ends(rows[i], words[id(rows[i].sampling)], head) for i in which]
    _forbid(scores, ends, which, head)


def _ends(row: RowContext, words: BadWords, head: Head) -> Ids:
    """Columns of the tokens that would end a bad word at a row."""
    before = row.history.tail(words.reach) if row.history is not None else ()
    columns, known = head.columns(np.array(words.forbidden((*before, *row.path)), dtype=np.int64))
    return columns[known]


def _forbid(scores: Tensor, columns: Sequence[Ids], which: Sequence[int], head: Head) -> None:
    """No choice of these columns, in each of these rows."""
    if which:
        places = _places(columns, which, head)
        scores.view(-1)[_on(scores, places)] = -torch.inf


def _places(columns: Sequence[Ids], which: Sequence[int], head: Head) -> Ids:
    """Columns of rows, in the flattened scores."""
    return np.concatenate([own + i * len(head) for i, own in zip(which, columns, strict=True)])


def _constrain(
    scores: Tensor, rows: Sequence[RowContext], which: Sequence[int], head: Head
) -> None:
    """Leave the tokens that the form allows; a row behind a token it forbids stays as it is."""
    for i in which:
        matcher = rows[i].matcher
        assert matcher is not None
        allowed = matcher.mask(rows[i].path)
        if allowed is not None:
            own = torch.from_numpy(allowed).to(scores.device)[head.ids(scores.device)]
            scores[i].masked_fill_(~own, -torch.inf)


@lru_cache(maxsize=64)
def _columns(tokens: tuple[int, ...], head: Head) -> Ids:
    columns, known = head.columns(np.array(tokens, dtype=np.int64))
    return columns[known]


@lru_cache(maxsize=64)
def _bias(logit_bias: tuple[tuple[int, float], ...], head: Head) -> tuple[Ids, _Values]:
    columns, known = head.columns(np.array([token for token, _ in logit_bias], dtype=np.int64))
    values = np.array([bias for _, bias in logit_bias], dtype=np.float32)
    return columns[known], values[known]


def _on(scores: Tensor, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(scores.device)
