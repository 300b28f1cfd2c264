"""Cutting draft trees; the rows of `q` follow their parents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from services.contract.types import DraftTree, SparseRow, TakenDraft
from services.verifier.trees import depths


def without_first(tree: DraftTree) -> DraftTree:
    """A chain without its first token, which was committed meanwhile."""
    q = None if tree.q is None else tree.q[1:]
    return replace(tree, token_ids=tree.token_ids[1:], parents=None, q=q)


def cut(tree: DraftTree, room: int) -> tuple[DraftTree, tuple[int, ...]]:
    """The tree down to depth `room`, and the former index of each node kept.

    What is cut depends on depths alone, never on a token: so the rest is verified as
    if nothing else had been drafted.
    """
    kept = tuple(node for node, depth in enumerate(depths(tree)[1:]) if depth <= room)
    if len(kept) == len(tree):
        return tree, kept
    index = {-1: -1} | {node: new for new, node in enumerate(kept)}
    parents = tuple(index[tree.every_parent[node]] for node in kept)
    tokens = tuple(tree.token_ids[node] for node in kept)
    smaller = replace(
        tree, token_ids=tokens, parents=None if tree.parents is None else parents, q=None
    )
    return replace(smaller, q=_rows_kept(tree, kept)), kept


def shortened(taken: TakenDraft, room: int) -> TakenDraft:
    """What was taken, down to depth `room`."""
    tree, kept = cut(taken.tree, max(0, room))
    if len(kept) == len(taken.tree):
        return taken
    reach = tuple(taken.reach[node] for node in kept)
    sources = bytes(taken.sources[node] for node in kept) if taken.sources else b""
    return TakenDraft(tree.normal(), reach, sources, taken.draft_ms)


def _rows_kept(tree: DraftTree, kept: Iterable[int]) -> tuple[SparseRow, ...] | None:
    """The rows of q whose parents still have children; None where rows and parents disagree."""
    givers = sorted(set(tree.every_parent))
    if tree.q is None or len(tree.q) != len(givers):
        return None
    still = {tree.every_parent[node] for node in kept}
    return tuple(row for giver, row in zip(givers, tree.q, strict=True) if giver in still)
