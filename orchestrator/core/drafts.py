"""The tail of a session: drafted tokens that are not yet on their way to the verifier.

A tail is a tuple of pieces in text order. Chain pieces can be cut and joined
freely, each token with its own row of q; a tree is one block, and nothing
follows it until it is verified. A tree whose nodes carry chances is cut to a prefix
when it is sent, and the rest is void.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from services.contract.types import DraftTree, Proposal, SparseRow, node_depths

# The row of a token that came without one; no verifier can use it.
NO_ROW = SparseRow((), ())
_MASK = (1 << 64) - 1
_INVERSE_PRIME = pow(0x100000001B3, -1, 1 << 64)


def retract_hash(prefix_hash: int, tokens: Iterable[int]) -> int:
    """Undo `extend_hash`: the hash before `tokens`, the last of which comes last."""
    for token in reversed(tuple(tokens)):
        prefix_hash = ((prefix_hash * _INVERSE_PRIME) & _MASK) ^ (token + 1)
    return prefix_hash


class Piece(NamedTuple):
    """Draft tokens that arrived together, and the drafter's time for them (ms).

    `reach`: each node's chance, never rising, where the drafter gives it; then even a chain
    counts as a tree: nothing follows it. `sources`: a `DraftSource` for each token, a byte each.
    """

    tree: DraftTree
    draft_ms: float = 0.0
    reach: tuple[float, ...] = ()
    sources: bytes = b""

    @property
    def is_chain(self) -> bool:
        """Whether other pieces may follow it."""
        return not self.reach and (self.tree.parents is None or self.tree.is_chain)


Tail = tuple[Piece, ...]
NOTHING = Piece(DraftTree())
"""A plain round's block."""


def chain_tokens(tail: Tail) -> tuple[int, ...]:
    """The tokens of the chain pieces, in order; a closing tree is left out."""
    if not tail:
        return ()
    if len(tail) == 1:
        return tail[0].tree.token_ids if tail[0].is_chain else ()
    return tuple([t for piece in tail if piece.is_chain for t in piece.tree.token_ids])


def ends_in_tree(tail: Tail) -> bool:
    """Whether nothing can be appended any more."""
    return bool(tail) and not tail[-1].is_chain


def with_its_rows(tree: DraftTree) -> DraftTree:
    """The draft with one row of q per token of a sampled chain, and none without sampling.

    A missing row becomes an empty one, and extra rows are dropped: one token's
    bad row must not cost another token its own.
    """
    if tree.proposal is not Proposal.SAMPLED:
        return tree if tree.q is None else replace(tree, q=None)
    if not tree.is_chain:
        return tree
    rows, size = tree.q or (), len(tree)
    return replace(tree, parents=None, q=(*rows[:size], *[NO_ROW] * (size - len(rows))))


def depth(tree: DraftTree) -> int:
    """Tokens on the longest path of a draft whose parents come before their children."""
    if tree.parents is None:
        return len(tree)
    return max((depth + 1 for depth in node_depths(tree.parents)), default=0)


def drop_front(piece: Piece, count: int) -> Piece:
    """The chain piece without its first `count` tokens; time is shared evenly."""
    size = len(piece.tree)
    tree = slice_chain(piece.tree, count, size)
    draft_ms = piece.draft_ms * (size - count) / size
    return Piece(tree, draft_ms, sources=piece.sources[count:])


def slice_chain(tree: DraftTree, start: int, stop: int) -> DraftTree:
    """Tokens [start, stop) of a chain with their q rows."""
    if start == 0 and stop == len(tree) and tree.parents is None:
        return tree
    q = tree.q[start:stop] if tree.q is not None else None
    return DraftTree(tree.token_ids[start:stop], None, q, tree.proposal, tree.without_replacement)


def take(tail: Tail, count: int) -> tuple[Piece, Tail]:
    """The next block of at most `count` chain tokens (or one whole tree) and the rest.

    Pieces of different proposals are never joined: a block is verified by one rule.
    """
    if tail and tail[0].reach:
        return beginning(tail[0], count), ()
    if not tail or count <= 0:
        return NOTHING, tail
    head = tail[0].tree
    if not head.is_chain:
        return tail[0], tail[1:]
    whole = 0
    for piece in tail:
        if len(piece.tree) > count or not _joins(head, piece.tree):
            break
        whole += 1
        count -= len(piece.tree)
    block, rest = tail[:whole], tail[whole:]
    if count and rest and _joins(head, rest[0].tree):
        block = (*block, _front(rest[0], count))
        rest = (drop_front(rest[0], count), *rest[1:])
    return _joined(block), rest


def beginning(piece: Piece, count: int) -> Piece:
    """The first `count` nodes of a tree whose nodes come best first; time is shared evenly."""
    if count <= 0:
        return NOTHING
    draft_ms = piece.draft_ms * min(1.0, count / len(piece.tree))
    return Piece(piece.tree.first(count), draft_ms, piece.reach[:count], piece.sources[:count])


def _joins(head: DraftTree, tree: DraftTree) -> bool:
    return tree.proposal is head.proposal and tree.is_chain


def _front(piece: Piece, count: int) -> Piece:
    """The first `count` tokens of a chain piece; time is shared evenly."""
    size = len(piece.tree)
    tree = slice_chain(piece.tree, 0, count)
    return Piece(tree, piece.draft_ms * count / size, sources=piece.sources[:count])


def _joined(pieces: Tail) -> Piece:
    """Chain pieces of one proposal as one; at least one of them."""
    if len(pieces) == 1:
        return pieces[0]
    first, q = pieces[0].tree, None
    if first.q is not None:
        q = tuple([row for piece in pieces for row in piece.tree.q or ()])
    tokens = tuple([token for piece in pieces for token in piece.tree.token_ids])
    tree = DraftTree(tokens, None, q, first.proposal, first.without_replacement)
    sources = b"".join([piece.sources for piece in pieces])
    return Piece(tree, sum([piece.draft_ms for piece in pieces]), sources=sources)


def after_bonus(tail: Tail, bonus: int) -> Tail | None:
    """The tail once `bonus` was committed before it, or None if it does not start so."""
    if not tail or not tail[0].is_chain or tail[0].tree.token_ids[0] != bonus:
        return None
    if len(tail[0].tree) == 1:
        return tail[1:]
    return (drop_front(tail[0], 1), *tail[1:])
