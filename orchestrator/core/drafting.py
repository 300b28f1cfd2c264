"""A draft arrives.

1. A draft of another epoch or another drafter is dropped.
2. It is fresh if and only if the hash of the text before its first token is
   the hash of our own text there. What is not fresh is dropped.
3. Tokens we already have must be equal; only the new ones are appended.
4. A gap, or a conflict with the tail, from a drafter that knows all we have
   committed means that something was lost: both start anew from the committed
   text in a new epoch. From a drafter that is behind, it is only late: dropped.
5. A draft beyond the window, the vocabulary or the cap of a tree's nodes, or a
   tree where chains were asked for, ends that drafter's part in the session,
   and nothing else.
6. A sampled chain has one row of q per token from here on. What is missing is
   an empty row: the verifier goes by exact match from that token on, and the
   tokens before it keep their rule.
"""

from __future__ import annotations

from orchestrator.core.drafts import Piece, depth, retract_hash, slice_chain, with_its_rows
from orchestrator.core.events import DraftArrived
from orchestrator.core.state import Phase, SessionConfig, State
from orchestrator.core.turn import Turn
from services.common.types import Draft, DraftTree, extend_hash


def on_draft(turn: Turn, event: DraftArrived) -> None:
    """Append what is fresh and new to the tail."""
    state, draft = turn.state, event.draft
    if state.phase is not Phase.RUNNING or not _current(state, event):
        return
    if not _well_formed(state, draft):
        turn.lose_drafter()
        return
    known_all = draft.base_committed_len == len(state.committed)
    if draft.final and known_all:
        turn.set(drafter_final=True)
    if draft.tree.token_ids:
        _absorb(turn, draft, known_all)


def _current(state: State, event: DraftArrived) -> bool:
    drafter = state.drafter
    return (
        drafter is not None
        and drafter.worker == event.worker
        and event.draft.epoch == state.epoch
        and event.draft.base_committed_len <= len(state.committed)
    )


def _absorb(turn: Turn, draft: Draft, known_all: bool) -> None:
    state = turn.state
    end = len(state.committed) + len(state.speculated)
    if draft.first_position > end or state.closed:
        turn.set(resync=state.resync or (known_all and draft.first_position > end))
        return
    if _hash_at(state, draft.first_position) != draft.prefix_hash:
        return
    overlap = end - draft.first_position
    known = (state.committed + state.speculated)[draft.first_position : end]
    fits = _append(turn, draft, overlap, known)
    if not fits and known_all:
        turn.set(resync=True)


def _append(turn: Turn, draft: Draft, overlap: int, known: tuple[int, ...]) -> bool:
    """Append the tokens beyond the overlap; False if the draft contradicts what we have."""
    tree = with_its_rows(draft.tree)
    if not tree.is_chain:
        if overlap == 0:
            turn.set(tail=(*turn.state.tail, Piece(tree, draft.draft_ms)))
        return overlap == 0
    shared = min(overlap, len(tree))
    if tree.token_ids[:shared] != known[:shared]:
        return False
    if shared < len(tree):
        fresh = slice_chain(tree, shared, len(tree))
        spent = draft.draft_ms * len(fresh) / len(tree)
        turn.set(tail=(*turn.state.tail, Piece(fresh, spent)))
    return True


def _hash_at(state: State, position: int) -> int:
    """The rolling hash of the speculated text before `position`."""
    length = len(state.committed)
    if position < length:
        return retract_hash(state.committed_hash, state.committed[position:])
    return extend_hash(state.committed_hash, state.speculated[: position - length])


def _well_formed(state: State, draft: Draft) -> bool:
    config, tree = state.config, draft.tree
    limit = config.vocab_size
    if limit and any(token >= limit for token in tree.token_ids):
        return False
    return (tree.is_chain or _is_tree(config, tree)) and (
        draft.first_position + depth(tree) <= len(state.committed) + config.window
    )


def _is_tree(config: SessionConfig, tree: DraftTree) -> bool:
    parents = tree.parents or ()
    topological = all(-1 <= parent < i for i, parent in enumerate(parents))
    return config.num_candidates > 1 and topological and len(tree) <= config.largest_block
