"""Mean distributions after one to four tokens, from texts with the target's distributions.

A distribution at temperature 1 says more than the token drawn from it, so a context that
occurred once is informative already. If the file would get too large, entries that add least
to a shorter context are dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from services.engine.ngram_file import LONGEST_LAW, ORDERS, Laws, code_of, support_of
from services.training.distill.texts import Text

KEPT = 8
LEAST = 0.015
"""Tokens kept of a mean distribution, and how likely the least of them is."""
READ = 16
BACKED_OFF = 0.003
"""The probability that a shorter context gives a token that it does not list."""
CHANCE = 0.6
"""Discount of a context's count: one that was seen once may never come again."""
HEAD_BYTES = 6

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean distributions of one order; entry e: `chances[e]` of `ids[e]` after `owners[e]`.

    `keys`, `counts`: [C], of the contexts, ascending; entries are sorted by owner, then id.
    `shorter`: [C], the context without its first token, -1 for the shortest. `places`: [R], the
    context of each distribution.
    """

    keys: Ints
    counts: Ints
    owners: Ints
    ids: Ints
    chances: Floats
    shorter: Ints
    places: Ints


def learn_laws(texts: Sequence[Text], vocab_size: int, most_bytes: int) -> tuple[Laws, ...]:
    """The distributions of all orders that are worth `most_bytes`."""
    keys, ids, chances = _read(texts)
    means: list[Mean] = []
    for order in range(ORDERS):
        shorter = means[-1] if means else None
        means.append(_mean(keys[order], ids, chances, shorter, vocab_size))
    width = 3 if vocab_size <= 1 << 16 else 5
    kept = _worth(means, vocab_size, most_bytes, width)
    return tuple(_packed(mean, keep) for mean, keep in zip(means, kept, strict=True))


def _read(texts: Sequence[Text]) -> tuple[list[Ints], Ints, Floats]:
    """Keys of the contexts of every order, [R] each; ids and chances, [R, 16]."""
    keys: list[list[Ints]] = [[] for _ in range(ORDERS)]
    for text in texts:
        tokens = np.concatenate([np.full(ORDERS, -1), text.token_ids]).astype(np.int64)
        key = np.zeros(len(text.prefixes), dtype=np.uint64)
        for order in range(ORDERS):
            key = _extended(key, tokens[text.prefixes + ORDERS - 1 - order])
            keys[order].append(key.astype(np.int64))
    ids = np.concatenate([text.law_ids[:, :READ] for text in texts]).astype(np.int64)
    logs = np.concatenate([text.law_logs[:, :READ] for text in texts]).astype(np.float64)
    return [np.concatenate(part) for part in keys], ids, np.exp(logs)


def _extended(keys: NDArray[np.uint64], tokens: Ints) -> NDArray[np.uint64]:
    """`extend_key` for many."""
    mask = np.uint64(0xFFFFFFFF)
    mixed = ((keys ^ (tokens + 1).astype(np.uint64)) * np.uint64(0x9E3779B1)) & mask
    return mixed ^ (mixed >> np.uint64(15))


def _mean(keys: Ints, ids: Ints, chances: Floats, shorter: Mean | None, vocab_size: int) -> Mean:
    known, first, places, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True
    )
    pairs = (places[:, None] * vocab_size + ids).ravel()
    found, where = np.unique(pairs, return_inverse=True)
    sums = np.bincount(where, weights=chances.ravel(), minlength=len(found))
    owners, tokens = found // vocab_size, found % vocab_size
    means = sums / counts[owners]
    good = means >= LEAST
    owners, tokens, means = owners[good], tokens[good], means[good]
    order = np.lexsort((-means, owners))
    rank = np.arange(len(order)) - np.searchsorted(owners[order], owners[order])
    best = np.sort(order[rank < min(KEPT, LONGEST_LAW)])
    above = np.full(len(known), -1) if shorter is None else shorter.places[first]
    return Mean(known, counts, owners[best], tokens[best], means[best], above, places)


def _worth(
    means: Sequence[Mean], vocab_size: int, most_bytes: int, width: int
) -> list[NDArray[np.bool_]]:
    """Which contexts are kept: those that tell most for their bytes."""
    worths, sizes = [], []
    for order, mean in enumerate(means):
        told = mean.chances * np.log(mean.chances / _backed_off(means, order, vocab_size))
        total = np.bincount(mean.owners, weights=told, minlength=len(mean.keys))
        entries = np.bincount(mean.owners, minlength=len(mean.keys))
        size = HEAD_BYTES + width * entries
        worths.append(np.where(entries > 0, (mean.counts - CHANCE) * total / size, 0.0))
        sizes.append(size)
    worth, size = np.concatenate(worths), np.concatenate(sizes)
    best = np.argsort(-worth, kind="stable")
    fits = (np.cumsum(size[best]) <= most_bytes) & (worth[best] > 0)
    kept = np.zeros(len(worth), dtype=bool)
    kept[best[fits]] = True
    return np.split(kept, np.cumsum([len(part) for part in worths])[:-1])


def _backed_off(means: Sequence[Mean], order: int, vocab_size: int) -> Floats:
    """For each entry, what the next shorter context says of its token."""
    mean = means[order]
    floor = np.full(len(mean.ids), BACKED_OFF)
    if not order:
        return floor
    shorter = means[order - 1]
    pairs = shorter.owners * vocab_size + shorter.ids
    wanted = mean.shorter[mean.owners] * vocab_size + mean.ids
    place = np.minimum(np.searchsorted(pairs, wanted), max(0, len(pairs) - 1))
    there = pairs[place] == wanted if len(pairs) else np.zeros(len(wanted), dtype=bool)
    known: Floats = np.where(there, shorter.chances[place] if len(pairs) else 0.0, 0.0)
    return np.asarray(np.maximum(floor, known))


def _packed(mean: Mean, kept: NDArray[np.bool_]) -> Laws:
    entries = kept[mean.owners]
    lengths = np.bincount(mean.owners[entries], minlength=len(mean.keys))[kept]
    return Laws(
        array("I", mean.keys[kept].tolist()),
        bytes(map(support_of, mean.counts[kept].tolist())),
        array("I", accumulate(lengths.tolist(), initial=0)),
        mean.ids[entries].tolist(),
        bytes(map(code_of, mean.chances[entries].tolist())),
    )
