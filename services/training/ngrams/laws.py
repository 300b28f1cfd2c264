"""Mean distributions after one to four tokens, from texts with the target's distributions.

A distribution at temperature 1 says more than the token drawn from it, so a context that
occurred once is informative already. If the file would get too large, entries that add least
to a shorter context are dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.ngram_file import ORDERS, Laws, code_of, support_of
from services.training.texts import Text

KEPT = 8
LEAST = 0.015
"""Tokens kept of a mean distribution, and how likely the least of them is."""
_HEAD_BYTES = 6
_READ = 16
_BACKED_OFF = 0.003
"""The probability that a shorter context gives a token that it does not list."""
_CHANCE = 0.6
"""Discount of a context's count: one that was seen once may never come again."""
_MASK = 0xFFFFFFFF
_FACTOR = 0x9E3779B1
_PART = 1 << 24
"""Entries that are merged at a time."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean distributions of one order; entry e: `chances[e]` of `ids[e]` after `owners[e]`.

    `keys`, `counts`: [C], of the contexts, ascending; entries are sorted by owner, then id.
    `shorter`: [C], the context without its first token, -1 for the shortest. `places`: [R], the
    context of each distribution.
    """

    keys: Tensor
    counts: Tensor
    owners: Tensor
    ids: Tensor
    chances: Tensor
    shorter: Tensor
    places: Tensor


@torch.inference_mode()
def learn_laws(texts: Sequence[Text], vocab_size: int, most_bytes: int) -> tuple[Laws, ...]:
    """The distributions of all orders that are worth `most_bytes`."""
    contexts, ids, chances = _read(texts)
    keys = torch.zeros(len(contexts), dtype=torch.int64)
    means: list[Mean] = []
    for order in range(ORDERS):
        keys = _extended(keys, contexts[:, order])
        shorter = means[-1] if means else None
        means.append(_mean(keys, ids, chances, shorter, vocab_size))
    kept = _worth_most(means, vocab_size, most_bytes)
    return tuple(_packed(mean, keep) for mean, keep in zip(means, kept, strict=True))


def _packed(mean: Mean, keep: Tensor) -> Laws:
    """Laws as a file has them, of the contexts to keep [C]."""
    entries = keep[mean.owners]
    lengths = torch.bincount(mean.owners, minlength=len(mean.keys))[keep].tolist()
    return Laws(
        array("I", mean.keys[keep].tolist()),
        bytes(map(support_of, mean.counts[keep].tolist())),
        array("I", accumulate(lengths, initial=0)),
        mean.ids[entries].tolist(),
        bytes(map(code_of, mean.chances[entries].tolist())),
    )


def _read(texts: Sequence[Text]) -> tuple[Tensor, Tensor, Tensor]:
    """The contexts [R, ORDERS] of all distributions, their ids and their chances [R, n]."""
    contexts: list[Ints] = []
    for text in texts:
        tokens = np.concatenate([np.full(ORDERS, -1), text.token_ids]).astype(np.int64)
        back = np.arange(1, ORDERS + 1)
        contexts.append(tokens[text.prefixes.astype(np.int64)[:, None] + ORDERS - back])
    ids = np.concatenate([text.law_ids[:, :_READ] for text in texts]).astype(np.int64)
    logs = np.concatenate([text.law_logs[:, :_READ] for text in texts]).astype(np.float64)
    chances = np.exp(logs)
    return (
        torch.from_numpy(np.concatenate(contexts)),
        torch.from_numpy(ids),
        torch.from_numpy(chances),
    )


def _extended(keys: Tensor, tokens: Tensor) -> Tensor:
    """`services.engine.ngram_file.extend_key` for many."""
    mixed = ((keys ^ (tokens + 1)) * _FACTOR) & _MASK
    return mixed ^ (mixed >> 15)


def _mean(
    keys: Tensor,
    ids: Tensor,
    chances: Tensor,
    shorter: Mean | None,
    vocab_size: int,
) -> Mean:
    known, places, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    parts = list(_merged(places, ids, chances, counts, vocab_size))
    owners, tokens, means = (torch.cat(part) for part in zip(*parts, strict=True))
    above = torch.full_like(known, -1)
    if shorter is not None:
        above[places] = shorter.places
    return Mean(known, counts, owners, tokens, means, above, places)


def _merged(
    places: Tensor, ids: Tensor, chances: Tensor, counts: Tensor, vocab_size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Owners, ids and means of the entries, some contexts at a time; ascending."""
    order = torch.argsort(places)
    bounds = counts.cumsum(0)
    rows = _PART // ids.shape[1]
    begin = first = 0
    while begin < len(counts):
        end = max(begin + 1, int(torch.searchsorted(bounds, first + rows, right=True)))
        last = int(bounds[end - 1])
        mine = order[first:last]
        yield _entries(places[mine], ids[mine], chances[mine], counts, vocab_size)
        begin, first = end, last


def _entries(
    places: Tensor, ids: Tensor, chances: Tensor, counts: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    pairs = (places[:, None] * vocab_size + ids).flatten()
    found, where = torch.unique(pairs, return_inverse=True)
    sums = torch.zeros(len(found), dtype=torch.float64, device=pairs.device)
    sums.index_add_(0, where, chances.double().flatten())
    owners, tokens = found // vocab_size, found % vocab_size
    means = sums / counts[owners]
    good = means >= LEAST
    owners, tokens, means = owners[good], tokens[good], means[good]
    order = torch.argsort(means, descending=True, stable=True)
    order = order[torch.argsort(owners[order], stable=True)]
    mine = owners[order]
    rank = torch.arange(len(mine), device=mine.device) - torch.searchsorted(mine, mine)
    best = order[rank < KEPT].sort().values
    return owners[best], tokens[best], means[best]


def _worth_most(means: list[Mean], vocab_size: int, most_bytes: int) -> Sequence[Tensor]:
    """Of each order, which contexts are of those that tell most for their bytes: bool [C]."""
    width = 3 if vocab_size <= 1 << 16 else 5
    worths, sizes = [], []
    for order, mean in enumerate(means):
        told = mean.chances * (mean.chances / _backed_off(means, order, vocab_size)).log()
        entries = torch.bincount(mean.owners, minlength=len(mean.keys))
        total = torch.zeros(len(mean.keys), dtype=torch.float64, device=told.device)
        total.index_add_(0, mean.owners, told)
        size = _HEAD_BYTES + width * entries
        worths.append(torch.where(entries > 0, (mean.counts - _CHANCE) * total / size, 0.0))
        sizes.append(size)
    worth, size = torch.cat(worths), torch.cat(sizes)
    best = torch.argsort(worth, descending=True, stable=True)
    fits = (size[best].cumsum(0) <= most_bytes) & (worth[best] > 0)
    kept = torch.zeros(len(worth), dtype=torch.bool, device=worth.device)
    kept[best[fits]] = True
    return torch.split(kept, [len(mean.keys) for mean in means])


def _backed_off(means: list[Mean], order: int, vocab_size: int) -> Tensor:
    """For each entry, what the next shorter context says of its token."""
    mean = means[order]
    floor = torch.full_like(mean.chances, _BACKED_OFF)
    if not order:
        return floor
    shorter = means[order - 1]
    pairs = shorter.owners * vocab_size + shorter.ids
    wanted = mean.shorter[mean.owners] * vocab_size + mean.ids
    place = torch.searchsorted(pairs, wanted).clamp_max(max(0, len(pairs) - 1))
    there = pairs[place] == wanted
    return torch.maximum(floor, torch.where(there, shorter.chances[place], 0.0))
