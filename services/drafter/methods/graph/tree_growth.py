"""How far the next tree grows: the shape that pays most by what was accepted so far.

Every text that grows past a draft tells which candidate of a node was the target's own,
or that none was. Hits and tries of each rank, discounted, give Sequoia's a_k. Together with
what a node and a level cost they say how many nodes and levels the next tree has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.drafter.methods.graph.tree_shape import TreeShape, best_shape, most_probable

PRIOR = (0.40, 0.12, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01)
"""What candidates are thought to hit before there is anything to go by."""
PRIOR_TRIES = 16.0
KEEP = 0.998
"""Weight of what was seen one try ago."""
REFRESH = 32
"""Tries after which the shape is worked out anew."""


@dataclass(frozen=True, slots=True)
class Growth:
    """`widths`: most nodes that each step takes further, the text in the first; `nodes`: of a tree.

    `rates`: chance that each candidate of a node is the target's, for those that pay.
    """

    widths: tuple[int, ...]
    nodes: int
    rates: tuple[float, ...] = ()


class GrowthPlan(Protocol):
    """Decides how far trees grow, and is told what became of them."""

    def growth(self, depth: int) -> Growth:
        """For a draft of at most `depth` >= 1 levels; one level and one node at least."""

    def observe(self, hit: int | None, count: int) -> None:
        """A node had `count` candidates, and the text went on with one of them, or with none."""


@dataclass(frozen=True, slots=True)
class TreeCosts:
    """The unit is one verification without draft tokens.

    `node`: what each node adds to it; `level`: one step of the draft model. `nodes` and `depth`
    bound a tree.
    """

    node: float = 0.02
    level: float = 0.2
    nodes: int = 16
    depth: int = 8


class MeasuredGrowth:
    """Sequoia's tree for the rates measured so far; see `tree_shape`."""

    def __init__(self, costs: TreeCosts) -> None:
        self._costs = costs
        self._hits = [PRIOR_TRIES * rate for rate in PRIOR]
        self._tries = [PRIOR_TRIES] * len(PRIOR)
        self._seen = 0
        self._made: dict[int, Growth] = {}

    @property
    def rates(self) -> tuple[float, ...]:
        """a_k: the chance that the k-th candidate of a node is the accepted one."""
        return tuple(hit / tried for hit, tried in zip(self._hits, self._tries, strict=True))

    def observe(self, hit: int | None, count: int) -> None:
        """See `GrowthPlan`. A rank that was not there was not tried."""
        for rank in range(min(count, len(PRIOR))):
            self._hits[rank] = KEEP * self._hits[rank] + (hit == rank)
            self._tries[rank] = KEEP * self._tries[rank] + 1.0
        self._seen += 1
        if self._seen % REFRESH == 0:
            self._made.clear()

    def growth(self, depth: int) -> Growth:
        """See `GrowthPlan`. Whether to draft at all is for whoever asks."""
        depth = min(depth, self._costs.depth)
        if depth not in self._made:
            shape = self._shape(depth)
            used = self.rates[: max(shape.ranks) + 1]
            self._made[depth] = Growth(shape.widths, len(shape), used)
        return self._made[depth]

    def _shape(self, depth: int) -> TreeShape:
        costs, rates = self._costs, self.rates
        shape = best_shape(
            rates,
            nodes=costs.nodes,
            depth=depth,
            verify=lambda nodes: 1.0 + costs.node * nodes,
            draft=costs.level,
        )
        return shape if len(shape) else most_probable(rates, 1, 1)


def default_growth() -> MeasuredGrowth:
    """For costs like those of the demo model beside a draft model of a few layers."""
    return MeasuredGrowth(TreeCosts())
