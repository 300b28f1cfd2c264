"""The token, or the best few tokens, that each row of a forward pass chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from services.contract.types import VerifyMode
from services.engine.sampling.head import Head, whole_head
from services.engine.sampling.paths import Path, parts, path_for
from services.engine.sampling.rows import NO_CHOICE, RowContext


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
        pick = partial(_picked, path, head)
        chosen += head.tokens(_by_mode(pick, scores, part)).tolist()
    return chosen


def choose_closely(
    logits: Tensor, rows: Sequence[RowContext], within: float, head: Head | None = None
) -> list[tuple[int, bool]]:
    """The tokens of `choose`, each with whether it was near a tie.

    It was where another token was not more than `within` worse: by the logits after bias,
    penalties and masks; in a coupled row by those and the noise in units of logits, which is
    temperature times Gumbel noise. See `ties`.
    """
    head = head or whole_head(logits.shape[-1])
    chosen: list[tuple[int, bool]] = []
    for path, scores, part in parts(logits, rows, head):
        pick = partial(_picked_closely, path, head, within)
        columns, close = _by_mode(pick, scores, part).unbind(-1)
        pairs = torch.stack((head.tokens(columns), close), -1).tolist()
        chosen += [(token, bool(near)) for token, near in pairs]
    return chosen


def highest_logits(logits: Tensor) -> Tensor:
    """What `choose` gives rows [R, V] of GREEDY in which nothing is edited, int64 [R]."""
    return path_for(logits).first_largest(logits)


def close_ones(logits: Tensor, chosen: Sequence[int], within: float) -> list[bool]:
    """Whether each of these choices was near a tie, as `choose_closely` says."""
    if not len(chosen):
        return []
    tokens = torch.tensor(chosen, device=logits.device)
    near = path_for(logits).near(logits, tokens, within).tolist()
    return [own and token != NO_CHOICE for own, token in zip(near, chosen, strict=True)]


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


def likeliest(logits: Tensor, count: int) -> Tensor:
    """The `count` highest logits of each row [R, V], as the model has them: ids int64 [R, count].

    Best first. The best of a row lie in the chunks with the highest maxima: to look those up first
    takes a fifth of the time that `topk` over a whole vocabulary takes on a CPU.
    """
    width = logits.shape[-1]
    chunks = width // _CHUNK
    if chunks <= count:
        return logits.topk(min(count, width)).indices
    whole = logits[:, : chunks * _CHUNK].reshape(-1, chunks, _CHUNK)
    chosen = whole.amax(-1).topk(count, sorted=False).indices[..., None]
    scores = whole.gather(1, chosen.expand(-1, -1, _CHUNK)).flatten(1)
    places = torch.arange(_CHUNK, device=logits.device)
    ids = (chosen * _CHUNK + places).flatten(1)
    if chunks * _CHUNK < width:
        rest = torch.arange(chunks * _CHUNK, width, device=logits.device)
        scores = torch.cat((scores, logits[:, chunks * _CHUNK :]), 1)
        ids = torch.cat((ids, rest.expand(len(ids), -1)), 1)
    found: Tensor = ids.gather(1, scores.topk(count).indices)
    return found


_CHUNK = 128


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


_Pick = Callable[[VerifyMode, Tensor, Sequence[RowContext]], Tensor]
"""What rows of one mode choose by their scores [R, V], int64 [R] or [R, 2]."""


def _picked(
    path: Path, head: Head, mode: VerifyMode, scores: Tensor, rows: Sequence[RowContext]
) -> Tensor:
    """One column per row, int64 [R]."""
    if mode is VerifyMode.GREEDY:
        return path.first_largest(scores)
    return path.race(scores, rows, head, 1)[:, 0]


def _picked_closely(
    path: Path,
    head: Head,
    within: float,
    mode: VerifyMode,
    scores: Tensor,
    rows: Sequence[RowContext],
) -> Tensor:
    """One column per row, and 1 where another is near, int64 [R, 2]."""
    if mode is VerifyMode.GREEDY:
        chosen = path.first_largest(scores)
        close = path.near(scores, chosen, within)
    else:
        chosen, close = path.close_race(scores, rows, head, within)
    return torch.stack((chosen, close.long()), -1)


def _by_mode(pick: _Pick, scores: Tensor, rows: Sequence[RowContext]) -> Tensor:
    """What all rows choose, in their order."""
    modes = {row.mode for row in rows}
    if not all(mode.exact_match for mode in modes):
        raise ValueError("only greedy and coupled rows have a choice of their own")
    if len(modes) == 1:
        return pick(modes.pop(), scores, rows)
    owns = {mode: [i for i, row in enumerate(rows) if row.mode is mode] for mode in modes}
    picked = [pick(mode, scores[own], [rows[i] for i in own]) for mode, own in owns.items()]
    joined = torch.cat(picked)
    found = torch.empty_like(joined)
    found[list(chain.from_iterable(owns.values()))] = joined
    return found


def _joined(found: Sequence[Tensor], logits: Tensor, count: int) -> Tensor:
    none = torch.empty((0, count), dtype=torch.int64, device=logits.device)
    return torch.cat([none, *found])
