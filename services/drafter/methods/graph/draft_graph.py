"""The draft graph of GSD (Gong et al., 2407.16207): hypotheses that share what they repeat.

A node is a token after a path of tokens; its first path, the one it was drafted
under, leads through its parents. Pure: it knows no model and no KV.

Rules:

1.  Candidates of a node come in draw order with falling weights. One that weighs
    less than `sibling_share` of the first is pruned.
2.  Merge: a candidate whose last `repeat` + 1 tokens (itself, and those in front of it,
    text included) are also those of a node that exists becomes an edge to that node. It
    is not drafted again: what follows the node is what follows it here, as a guess
    that was made under the node's first path. Any number of edges may lead to a node,
    and from one. (The published code keeps one per node, the last.)
3.  Merge never closes a cycle: not with the path's own nodes, and not with a node
    from which edges lead back. Where what may follow depends on the position (shared
    noise), only nodes of the same depth are merged.
4.  A node lighter than `leaf_weight` is a leaf, and so is a token that ends the text: part
    of the draft, but nothing is drafted after it.
5.  First of all the trunk is expanded, then the most probable nodes, by the product of
    weights along the first path. The graph never holds more than `max_nodes`.
6.  Unfolded to a tree, first the trunk and then the most probable paths, down to a depth
    and up to a number of nodes: an edge to a merged node becomes a copy of what is below
    it. Children keep their draw order.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from services.drafter.comb import Level

ROOT = -1
"""The text, as the parent of the first nodes."""


@dataclass(frozen=True, slots=True)
class GraphRules:
    """What becomes a node; see the rules above. `repeat` None: nothing is merged."""

    max_nodes: int = 64
    sibling_share: float = 0.1
    leaf_weight: float = 0.05
    repeat: int | None = 1
    same_depth: bool = False


@dataclass(slots=True)
class Node:
    """One node: its token, where it stands on its first path, and the edges from it.

    `recent`: the last tokens of the first path; `reach`: the product of weights along it.
    `below`: edges in draw order, each with the weight of the candidate it stands for.
    """

    token: int
    parent: int
    depth: int
    reach: float
    recent: tuple[int, ...]
    leaf: bool = False
    expanded: bool = False
    below: list[tuple[int, float]] = field(default_factory=list)

    def grows_to(self, depth: int) -> bool:
        """Whether its candidates are still to be drafted, and would stand on `depth` or above."""
        return not (self.leaf or self.expanded) and self.depth + 2 <= depth


PLAIN_TREE = GraphRules(max_nodes=4096, sibling_share=0.0, leaf_weight=0.0, repeat=None)
"""A tree of which nothing is merged and nothing left out."""


class DraftGraph:
    """What is drafted in front of `text`; nodes by number, in order of making."""

    def __init__(self, text: Sequence[int], rules: GraphRules, stops: Collection[int] = ()) -> None:
        self._rules = rules
        self._stops = stops
        keep = (rules.repeat or 0) + 1
        self._root = Node(-1, ROOT, -1, 1.0, tuple(text[-keep:]))
        self._known: dict[tuple[int, ...], list[int]] = {}
        self.nodes: list[Node] = []
        self.merged = 0
        """Candidates that became edges instead of nodes."""

    def __getitem__(self, node: int) -> Node:
        """A node, or the text as one."""
        return self._root if node == ROOT else self.nodes[node]

    @property
    def full(self) -> bool:
        """No node can be added."""
        return len(self.nodes) >= self._rules.max_nodes

    # --- growth -----------------------------------------------------------------

    def frontier(self, depth: int, most: int) -> list[int]:
        """At most `most` nodes to expand next, best first; none whose candidates lie below `depth`.

        `depth` counts levels: candidates of the text are the first.
        """
        if self.full or most < 1:
            return []
        grow = [number for number, node in enumerate(self.nodes) if node.grows_to(depth)]
        trunk = self._trunk_end()
        return heapq.nsmallest(
            most, grow, key=lambda number: (number != trunk, -self.nodes[number].reach)
        )

    def _trunk_end(self) -> int:
        """Where first candidates lead to from the text."""
        at = ROOT
        while below := self[at].below:
            at = below[0][0]
        return at

    def expand(self, above: int, level: Level) -> None:
        """Take in the candidates after a node."""
        on_trunk = above == self._trunk_end()
        self[above].expanded = True
        least = self._rules.sibling_share * max(level.weights, default=0.0)
        for rank, (token, weight) in enumerate(zip(level.token_ids, level.weights, strict=True)):
            if weight >= least:
                self._add(above, token, weight, new=on_trunk and rank == 0)

    def _add(self, above: int, token: int, weight: float, *, new: bool) -> None:
        parent = self[above]
        recent = (*parent.recent, token)[-((self._rules.repeat or 0) + 1) :]
        twin = None if new else self._twin(above, recent)
        if twin is not None:
            self.merged += 1
            parent.below.append((twin, weight))
        elif not self.full:
            leaf = weight < self._rules.leaf_weight or token in self._stops
            number = len(self.nodes)
            reach = parent.reach * weight
            self.nodes.append(Node(token, above, parent.depth + 1, reach, recent, leaf))
            self._known.setdefault(recent, []).append(number)
            parent.below.append((number, weight))

    def _twin(self, above: int, recent: tuple[int, ...]) -> int | None:
        """The first node that a candidate after `above` may be merged with."""
        if self._rules.repeat is None:
            return None
        level = self[above].depth + 1
        for number in self._known.get(recent, ()):
            if self._rules.same_depth and self.nodes[number].depth != level:
                continue
            if not self._leads(number, above):
                return number
        return None

    def _leads(self, start: int, goal: int) -> bool:
        """Whether edges lead from `start` to `goal`, or they are one."""
        seen, waiting = {start}, [start]
        while waiting:
            node = waiting.pop()
            if node == goal:
                return True
            new = {below for below, _ in self.nodes[node].below} - seen
            seen |= new
            waiting += new
        return False

    # --- reading ----------------------------------------------------------------

    def path(self, node: int) -> list[int]:
        """The first path to a node, from the text's child down to itself; [] for the text."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return path[::-1]

    def tokens(self, path: Sequence[int]) -> tuple[int, ...]:
        """Tokens of some nodes."""
        return tuple(self.nodes[node].token for node in path)

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that `tokens` lead through, from the text down, as far as there are any."""
        at, path = ROOT, []
        for token in tokens:
            at = self.child(at, token)
            if at == ROOT:
                break
            path.append(at)
        return path

    def child(self, above: int, token: int) -> int:
        """The candidate of a node that is this token; `ROOT` = there is none."""
        found = (below for below, _ in self[above].below if self.nodes[below].token == token)
        return next(found, ROOT)

    def real(self, path: Sequence[int]) -> int:
        """How many leading nodes of a walk were drafted after exactly what is in front of them."""
        for count, node in enumerate(path):
            if self.nodes[node].parent != (path[count - 1] if count else ROOT):
                return count
        return len(path)

    def unfolded(self, depth: int, most: int) -> tuple[list[int], list[int]]:
        """The graph as a tree: the node that each of its nodes copies, and its parents."""
        copied: list[int] = []
        parents: list[int] = []
        # (off the trunk, minus the path's weight, order of making, node, parent's copy, level)
        waiting = [(False, -1.0, 0, ROOT, 0, 0)]
        made = 0
        while waiting and len(copied) <= most:
            off, reach, _, node, above, level = heapq.heappop(waiting)
            copy = len(copied)
            copied.append(node)
            parents.append(above)
            for rank, (below, weight) in enumerate(self[node].below if level < depth else ()):
                made += 1
                entry = (off or rank > 0, reach * weight, made, below, copy, level + 1)
                heapq.heappush(waiting, entry)
        return copied[1:], [above - 1 for above in parents[1:]]

    # --- what is left -------------------------------------------------------------

    def branch(self, node: int, text: Sequence[int]) -> tuple[DraftGraph, dict[int, int]]:
        """The graph in front of `text`, which ends in `node`; new numbers of what is left.

        What stands below the node by first paths stays, with the edges inside it.
        """
        index = {node: ROOT}
        for number, below in enumerate(self.nodes):
            if below.parent in index and number != node:
                index[number] = len(index) - 1
        rest = DraftGraph(text, self._rules, self._stops)
        rest._root.expanded = self.nodes[node].expanded
        rest._root.below = _renumbered(self.nodes[node].below, index)
        rest.nodes = [self._moved(old, node, index) for old in list(index)[1:]]
        for number, moved in enumerate(rest.nodes):
            rest._known.setdefault(moved.recent, []).append(number)
        return rest, index

    def _moved(self, old: int, root: int, index: dict[int, int]) -> Node:
        node, top = self.nodes[old], self.nodes[root]
        return replace(
            node,
            parent=index[node.parent],
            depth=node.depth - top.depth - 1,
            reach=node.reach / top.reach if top.reach else 0.0,
            below=_renumbered(node.below, index),
        )


def _renumbered(
    below: Sequence[tuple[int, float]], index: dict[int, int]
) -> list[tuple[int, float]]:
    return [(index[node], weight) for node, weight in below if index.get(node, ROOT) != ROOT]
