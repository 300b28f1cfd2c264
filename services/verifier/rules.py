"""Verification by exact match: the target's own choices walk down the draft.

Row 0 of a block is the last committed token (the root), row i + 1 is draft
token i. Each row has one choice of the target: its argmax, or its sample under
noise shared per output position. The emitted text is those choices and nothing
else, so it has the target's law whatever the draft was (Daliri, Musco and
Suresh, 2408.07978, section 3; on trees the noise is that of the depth).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.common.types import DraftTree


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted draft tokens `path` (indices in the draft) and the target's next token.

    `all_accepted`: the walk ended at a leaf, so `final_token` is a bonus; else it
    is the recovered token.
    """

    path: tuple[int, ...]
    final_token: int
    all_accepted: bool


def walk(tree: DraftTree, choices: Sequence[int]) -> Walk:
    """Follow the target's `choices` (one per row, 1 + len(tree)) through a chain or tree."""
    if tree.parents is None:
        return walk_chain(tree.token_ids, choices)
    return walk_tree(tree.token_ids, tree.parents, choices)


def walk_chain(token_ids: Sequence[int], choices: Sequence[int]) -> Walk:
    """The longest prefix of `token_ids` (n) that equals `choices` (n + 1), and what follows."""
    accepted = 0
    while accepted < len(token_ids) and token_ids[accepted] == choices[accepted]:
        accepted += 1
    return Walk(tuple(range(accepted)), choices[accepted], accepted == len(token_ids))


def walk_tree(token_ids: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> Walk:
    """Descend to the child that carries the row's choice; the first of equal children wins."""
    children: dict[int, dict[int, int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, {}).setdefault(token_ids[node], node)
    path: list[int] = []
    at = -1
    while (child := children.get(at, {}).get(choices[at + 1])) is not None:
        path.append(child)
        at = child
    return Walk(tuple(path), choices[at + 1], at not in children)


def depths(tree: DraftTree) -> list[int]:
    """Per row (1 + n), how many tokens after the committed text it stands: the root has 0."""
    if tree.parents is None:
        return list(range(len(tree) + 1))
    levels = [0]
    for parent in tree.parents:
        levels.append(levels[parent + 1] + 1)
    return levels
