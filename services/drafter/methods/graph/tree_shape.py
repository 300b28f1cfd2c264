"""Which tree of candidates brings most: Sequoia (Chen et al., 2402.12374, section 4.1).

Let the k-th candidate of a node be the accepted one with chance a_k, wherever the node
stands. A tree then brings, with the token of the target's own behind what is accepted,

    E[tokens] = 1 + the sum over its nodes of the product of a_k along their path,

and the best of n nodes is Sequoia's F(n) = 1 + max over n_1 + n_2 + ... = n of
a_1 F(n_1) + a_2 F(n_2) + ... Where chances fall with k, a node's product is at most that of its
parent and of the sibling before it. So the n largest products of all are a tree by
themselves, and no other n nodes can bring more: they are taken one by one from a heap.

How many nodes, and how deep, is what the hardware says: most tokens per time of a round,
E[tokens] / (t_verify(n) + depth * t_draft).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count

from services.contract.types import node_depths


@dataclass(frozen=True, slots=True)
class TreeShape:
    """Nodes in the order in which they are worth adding: every first part is a tree, too.

    `parents` as in `DraftTree`; `ranks`: which candidate of its parent a node is, 0 for the
    first; `reach`: the chance that it is accepted.
    """

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    reach: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Levels, each a step of the draft model."""
        return max((depth + 1 for depth in node_depths(self.parents)), default=0)

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes that each step of the draft model takes further, the text in the first."""
        levels = [0, *(depth + 1 for depth in node_depths(self.parents))]
        further = {parent + 1 for parent in self.parents}
        sizes = Counter(levels[row] for row in further)
        return tuple(sizes[level] for level in range(self.depth))

    def first(self, nodes: int) -> TreeShape:
        """The best part of so many nodes."""
        return TreeShape(self.parents[:nodes], self.ranks[:nodes], self.reach[:nodes])


def best_shape(
    rates: Sequence[float],
    *,
    nodes: int,
    depth: int,
    verify: Callable[[int], float],
    draft: float,
) -> TreeShape:
    """The tree of most tokens per time, of at most `nodes` nodes and `depth` levels.

    `rates`: a_1, a_2, ...; `verify(n)`: time to verify n nodes; `draft`: time of one level,
    in the same unit. No nodes where plain decoding is faster.
    """
    best, pace = TreeShape(), 1.0 / verify(0)
    for levels in range(1, depth + 1):
        grown = most_probable(rates, nodes, levels)
        deepest = accumulate(node_depths(grown.parents), max)
        tokens = accumulate(grown.reach, initial=1.0)
        next(tokens)
        for size, (brought, low) in enumerate(zip(tokens, deepest, strict=True), 1):
            reached = brought / (verify(size) + (low + 1) * draft)
            if reached > pace:
                best, pace = grown.first(size), reached
    return best


def most_probable(rates: Sequence[float], nodes: int, depth: int) -> TreeShape:
    """The tree of at most `nodes` nodes and `depth` levels whose sum of products is greatest.

    A rate above one before it counts as that: chances that do not fall were measured badly.
    """
    falling = list(accumulate(rates, min))
    parents: list[int] = []
    ranks: list[int] = []
    reach: list[float] = []
    # (minus the product, order of making, parent, rank, level, the parent's product)
    waiting: list[tuple[float, int, int, int, int, float]] = []
    made = count()

    def offer(parent: int, rank: int, level: int, above: float) -> None:
        if level <= depth and rank < len(falling) and falling[rank] > 0:
            entry = (-above * falling[rank], next(made), parent, rank, level, above)
            heapq.heappush(waiting, entry)

    offer(-1, 0, 1, 1.0)
    while waiting and len(parents) < nodes:
        product, _, parent, rank, level, above = heapq.heappop(waiting)
        parents.append(parent)
        ranks.append(rank)
        reach.append(-product)
        offer(len(parents) - 1, 0, level + 1, -product)
        offer(parent, rank + 1, level, above)
    return TreeShape(tuple(parents), tuple(ranks), tuple(reach))
