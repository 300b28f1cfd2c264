"""The rules once more, read from the papers line by line: dense, slow, one block at a time.

`p[i]` is the target's law at row i of a block, `q[i]` the draft's, both [V] float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from services.contract.types import DraftTree, Proposal, SparseRow, VerifyMode
from services.engine.noise import Stream

Law = np.ndarray


def standard_thresholds(p: Sequence[Law], q: Sequence[Law], x: Sequence[int]) -> list[float]:
    return [min(1.0, p[i][token] / q[i][token]) for i, token in enumerate(x)]


def block_reach(p: Sequence[Law], q: Sequence[Law], x: Sequence[int]) -> list[float]:
    reach = [1.0]
    for i, token in enumerate(x):
        reach.append(min(1.0, reach[-1] * p[i][token] / q[i][token]))
    return reach[1:]


def block_thresholds(p: Sequence[Law], q: Sequence[Law], x: Sequence[int]) -> list[float]:
    reach, h = block_reach(p, q, x), []
    for i in range(1, len(x)):
        left = np.maximum(reach[i - 1] * p[i] - q[i], 0).sum()
        either = left + 1 - reach[i - 1]
        h.append(left / either if either > 0 else 1.0)
    return [*h, reach[-1]]


def standard_accepted(h: Sequence[float], u: Sequence[float]) -> int:
    return next((i for i in range(len(h)) if u[i] >= h[i]), len(h))


def block_accepted(h: Sequence[float], u: Sequence[float]) -> int:
    return max((i + 1 for i in range(len(h)) if u[i] < h[i]), default=0)


def norm(mass: Law) -> Law:
    return mass / mass.sum()


def residual(p: Law, q: Law, scale: float = 1.0) -> Law:
    left = np.maximum(scale * p - q, 0)
    return norm(left) if left.sum() > 0 else p


def candidate_thresholds(
    p: Law, q: Law, drawn: Sequence[int], without_replacement: bool
) -> tuple[list[float], Law]:
    """The chance of each candidate once those before it were rejected, and the last residual."""
    chances = []
    for token in drawn:
        chances.append(min(1.0, p[token] / q[token]))
        p = residual(p, q)
        if without_replacement:
            q = q.copy()
            q[token] = 0.0
            q = norm(q) if q.sum() > 0 else q
    return chances, p


def dense(row: SparseRow, vocab: int) -> Law:
    law = np.zeros(vocab)
    law[list(row.token_ids)] = row.probabilities
    return norm(law)


# --- which uniforms decide a block ------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """The uniform of `key` lies in [low, high); try it near one edge, 0 = low and 1 = high."""

    key: tuple[Stream, int, int]
    low: float
    high: float
    edge: float


def yes_or_no(key: tuple[Stream, int, int], chance: float) -> tuple[Decision, Decision]:
    return Decision(key, 0.0, chance, 1.0), Decision(key, chance, 1.0, 0.0)


def own_samples(row: int, p: Law) -> list[Decision]:
    """Every token that the target itself may draw at a row."""
    key = Stream.BONUS, row, 0
    if np.isnan(p).any():
        return [Decision(key, 0.0, 1.0, 0.5)]
    edges = [0.0, *np.cumsum(p).tolist()]
    return [Decision(key, *edges[token : token + 2], 0.5) for token in range(len(p))]


def q_rows(tree: DraftTree, p: Sequence[Law]) -> dict[int, Law]:
    """The usable rows of q by row of the block: none where the target has no law."""
    vocab = len(p[0])
    parents = tree.parents or range(-1, len(tree) - 1)
    found = {}
    inner = sorted({parent + 1 for parent in parents})
    sent = tree.q if tree.proposal is Proposal.SAMPLED and tree.q else ()
    for row, law in zip(inner, sent, strict=False):
        drawn = [tree.token_ids[i] for i, parent in enumerate(parents) if parent + 1 == row]
        mass = dict(zip(law.token_ids, law.probabilities, strict=True))
        lawful = abs(sum(mass.values()) - 1) <= 1e-4 and max(mass) < vocab
        lawful = lawful and not np.isnan(p[row]).any()
        if lawful and all(mass.get(token, 0) > 0 for token in drawn):
            found[row] = dense(law, vocab)
    return found


def chain_branches(
    tree: DraftTree, p: Sequence[Law], mode: VerifyMode
) -> Iterator[tuple[Decision, ...]]:
    usable = q_rows(tree, p)
    prefix = next(row for row in range(len(tree) + 1) if row not in usable)
    q, x = [usable[row] for row in range(prefix)], tree.token_ids[:prefix]
    rule = block_thresholds if mode is VerifyMode.BLOCK else standard_thresholds
    by_rejection = [
        yes_or_no((Stream.ACCEPT, row, 0), chance)
        for row, chance in enumerate(rule(p[: prefix + 1], q, x) if prefix else [])
    ]
    by_sample = [own_samples(row, p[row]) for row in range(prefix, len(tree))]
    yield from product(*by_rejection, *by_sample)


def tree_branches(
    tree: DraftTree, p: Sequence[Law], row: int = 0, sampled: bool = True
) -> Iterator[tuple[Decision, ...]]:
    """Only the rows that a walk reaches decide anything."""
    nodes = [node for node, parent in enumerate(tree.parents or ()) if parent + 1 == row]
    q = q_rows(tree, p) if sampled else {}
    if not nodes:
        yield ()
    elif row in q:
        yield from _rejection_branches(tree, p, row, nodes, q[row])
    else:
        carried = {tree.token_ids[node]: node for node in reversed(nodes)}
        for token, own in enumerate(own_samples(row, p[row])):
            child = carried.get(token)
            below = [()] if child is None else tree_branches(tree, p, child + 1, False)
            yield from ((own, *rest) for rest in below)


def _rejection_branches(
    tree: DraftTree, p: Sequence[Law], row: int, nodes: Sequence[int], q: Law
) -> Iterator[tuple[Decision, ...]]:
    drawn = [tree.token_ids[node] for node in nodes]
    chances, _ = candidate_thresholds(p[row], q, drawn, tree.without_replacement)
    missed: tuple[Decision, ...] = ()
    for candidate, (node, chance) in enumerate(zip(nodes, chances, strict=True)):
        hit, miss = yes_or_no((Stream.ACCEPT, row, candidate), chance)
        for below in tree_branches(tree, p, node + 1):
            yield (*missed, hit, *below)
        missed = (*missed, miss)
    yield missed
