"""Verification by exact match: the target's own choices walk down the draft.

Row 0 of a block is the last committed token (the root), row i + 1 is draft
token i. Each row has one choice of the target: its argmax, or its sample under
noise shared per output position. The emitted text is those choices and nothing
else, so it has the target's law whatever the draft was (Daliri, Musco and
Suresh, 2408.07978, section 3; on trees the noise is that of the depth).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.contract.types import DraftTree

Choose = Callable[[Sequence[tuple[int, int]]], Sequence[int]]
"""The target's tokens at some places (block, row), all asked for together."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted draft tokens `path` (indices in the draft) and the target's next token.

    `all_accepted`: the walk ended at a leaf, so `final_token` is a bonus; else it
    is the recovered token.
    """

    path: tuple[int, ...]
    final_token: int
    all_accepted: bool


def walk_rows(
    trees: Sequence[DraftTree], choose: Choose, starts: Sequence[int] | None = None
) -> list[Walk]:
    """Descend every tree at once to the child that carries the row's choice.

    `choose` is asked level by level, and only for rows that a walk reaches. The
    first of equal children wins. `starts`: the row where each walk begins, default the root.
    """
    nodes = [_nodes_by_token(tree) for tree in trees]
    at = list(starts) if starts is not None else [0] * len(trees)
    paths: list[list[int]] = [[] for _ in trees]
    final = [0] * len(trees)
    walking = list(range(len(trees)))
    while walking:
        chosen = choose([(block, at[block]) for block in walking])
        descended = []
        for block, token in zip(walking, chosen, strict=True):
            final[block] = token
            node = nodes[block].get(at[block], {}).get(token)
            if node is not None:
                paths[block].append(node)
                at[block] = node + 1
                descended.append(block)
        walking = descended
    ends = zip(paths, final, at, nodes, strict=True)
    return [Walk(tuple(path), token, row not in own) for path, token, row, own in ends]


def children(tree: DraftTree) -> dict[int, list[int]]:
    """The nodes below each row that has any, in draw order; rows in ascending order."""
    if tree.parents is None:
        return {row: [row] for row in range(len(tree))}
    below: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        below.setdefault(parent + 1, []).append(node)
    return {row: below[row] for row in sorted(below)}


def _nodes_by_token(tree: DraftTree) -> dict[int, dict[int, int]]:
    """Per row the first node that carries each token."""
    return {
        row: {tree.token_ids[node]: node for node in reversed(nodes)}
        for row, nodes in children(tree).items()
    }
