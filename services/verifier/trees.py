"""How deep the nodes of a draft stand, and behind which of its tokens."""

from __future__ import annotations

from services.contract.types import DraftTree, node_depths


def depths(tree: DraftTree) -> list[int]:
    """Per row (1 + n), how many tokens after the committed text it stands: the root has 0."""
    if tree.parents is None:
        return list(range(len(tree) + 1))
    return [0, *(depth + 1 for depth in node_depths(tree.parents))]


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Per row (1 + n), the draft tokens from the committed text to it: () for the root."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.token_ids, tree.every_parent, strict=True):
        found.append((*found[parent + 1], token))
    return found
