"""Mean distributions after one to four tokens: `services.training.ngrams.laws` on a device.

A context that was seen less than `LEAST_SEEN` times is left out before anything else: with tens of
millions of distributions it would never be among those that are worth their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from services.training.ngrams.laws import (
    BACKED_OFF,
    CHANCE,
    HEAD_BYTES,
    KEPT,
    LEAST,
    READ,
)

LEAST_SEEN = 2
_MASK = 0xFFFFFFFF
_FACTOR = 0x9E3779B1
_PART = 1 << 24
"""Entries that are merged at a time."""


@dataclass(frozen=True, slots=True)
class Means:
    """Mean distributions of one order, as `services.training.ngrams.laws.Mean` has them.

    `keys` ascending and `counts` [C]; `owners`, `ids`, `chances` [E], by owner, then id; `places`
    [R], the context of each distribution, -1 for one that is left out; `shorter` [C].
    """

    keys: Tensor
    counts: Tensor
    owners: Tensor
    ids: Tensor
    chances: Tensor
    places: Tensor
    shorter: Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """Contexts of one order that are kept, and `worths` [C] for each byte, to keep fewer."""

    keys: Tensor
    counts: Tensor
    owners: Tensor
    ids: Tensor
    chances: Tensor
    worths: Tensor


@torch.inference_mode()
def learn(
    contexts: Tensor, ids: Tensor, chances: Tensor, vocab_size: int, most_bytes: int
) -> list[Packed]:
    """The distributions of all orders that are worth `most_bytes`.

    contexts int64 [R, orders], the last token first; ids and chances [R, n], best first.
    """
    ids, chances = ids[:, :READ], chances[:, :READ]
    keys = torch.zeros(len(contexts), dtype=torch.int64, device=contexts.device)
    means: list[Means] = []
    for order in range(contexts.shape[1]):
        keys = extended(keys, contexts[:, order])
        means.append(_means(keys, ids, chances, means[-1] if means else None, vocab_size))
    return _packed(means, vocab_size, most_bytes)


def extended(keys: Tensor, tokens: Tensor) -> Tensor:
    """`services.engine.ngram_file.extend_key` for many."""
    mixed = ((keys ^ (tokens + 1)) * _FACTOR) & _MASK
    return mixed ^ (mixed >> 15)


def _means(
    keys: Tensor, ids: Tensor, chances: Tensor, shorter: Means | None, vocab_size: int
) -> Means:
    known, places, counts = torch.unique(keys, return_inverse=True, return_counts=True)
    often = counts >= LEAST_SEEN
    renamed = torch.where(often, often.cumsum(0) - 1, -1)
    places = renamed[places]
    known, counts = known[often], counts[often]
    parts = list(_merged(places, ids, chances, counts, vocab_size))
    owners, tokens, means = (torch.cat(part) for part in zip(*parts, strict=True))
    above = torch.full_like(known, -1)
    if shorter is not None:
        there = places >= 0
        above[places[there]] = shorter.places[there]
    return Means(known, counts, owners, tokens, means, places, above)


def _merged(
    places: Tensor, ids: Tensor, chances: Tensor, counts: Tensor, vocab_size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Owners, ids and means of the entries, some contexts at a time; ascending."""
    order = torch.argsort(places)
    order = order[int((places < 0).sum()) :]
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


def _packed(means: list[Means], vocab_size: int, most_bytes: int) -> list[Packed]:
    width = 3 if vocab_size <= 1 << 16 else 5
    worths, sizes = [], []
    for order, mean in enumerate(means):
        told = mean.chances * (mean.chances / _backed_off(means, order, vocab_size)).log()
        entries = torch.bincount(mean.owners, minlength=len(mean.keys))
        total = torch.zeros(len(mean.keys), dtype=torch.float64, device=told.device)
        total.index_add_(0, mean.owners, told)
        size = HEAD_BYTES + width * entries
        worths.append(torch.where(entries > 0, (mean.counts - CHANCE) * total / size, 0.0))
        sizes.append(size)
    worth, size = torch.cat(worths), torch.cat(sizes)
    best = torch.argsort(worth, descending=True, stable=True)
    fits = (size[best].cumsum(0) <= most_bytes) & (worth[best] > 0)
    kept = torch.zeros(len(worth), dtype=torch.bool, device=worth.device)
    kept[best[fits]] = True
    parts = torch.split(kept, [len(mean.keys) for mean in means])
    return [
        _chosen(mean, keep, worth) for mean, keep, worth in zip(means, parts, worths, strict=True)
    ]


def _chosen(mean: Means, keep: Tensor, worth: Tensor) -> Packed:
    entries = keep[mean.owners]
    renamed = keep.cumsum(0) - 1
    return Packed(
        mean.keys[keep],
        mean.counts[keep],
        renamed[mean.owners[entries]],
        mean.ids[entries],
        mean.chances[entries],
        worth[keep],
    )


def _backed_off(means: list[Means], order: int, vocab_size: int) -> Tensor:
    """For each entry, what the next shorter context says of its token."""
    mean = means[order]
    floor = torch.full_like(mean.chances, BACKED_OFF)
    if not order:
        return floor
    shorter = means[order - 1]
    pairs = shorter.owners * vocab_size + shorter.ids
    wanted = mean.shorter[mean.owners] * vocab_size + mean.ids
    place = torch.searchsorted(pairs, wanted).clamp_max(max(0, len(pairs) - 1))
    there = pairs[place] == wanted
    return torch.maximum(floor, torch.where(there, shorter.chances[place], 0.0))
