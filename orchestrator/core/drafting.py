"""A draft arrives.

1. A draft of an earlier epoch or another drafter is dropped. A drafter beside the verifier
   gets verdicts sooner, so its draft may follow text that is not committed here yet: such a
   draft waits for the verdict. If no verdict under way can confirm it, that drafter's part in
   the session ends. Where a block at the verifier takes drafts there, a draft that comes here
   is for the block after it, and waits; one that knows no more is late.
2. A draft is fresh if and only if its prefix hash is that of our text there. One that is not
   fresh is dropped.
3. Tokens we already have must be equal; only the new ones are appended.
4. A gap, or a conflict with the tail, from a drafter that knows all we have committed means
   that a message was lost: both restart from the committed text in a new epoch. From a
   drafter that is behind, the draft is only late: dropped.
5. A draft beyond the window, the vocabulary or the node limit, parents that make no tree, a
   tree where chains were asked for, distributions that are too large, chances that are
   invalid or rise, and too few or too many sources each end that drafter's part in the
   session, and nothing else.
6. A sampled chain has one row of q per token from here on. A missing row becomes an empty one:
   the verifier matches exactly from that token on; the tokens before it keep their rule.
7. A token has the source that the drafter names, else that of the session's method; an
   unknown one is unspecified. Only statistics read it.
"""

from __future__ import annotations

from itertools import pairwise

from orchestrator.core.drafts import Piece, depth, retract_hash, slice_chain, with_its_rows
from orchestrator.core.events import DraftArrived
from orchestrator.core.state import State
from orchestrator.core.turn import Turn
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.sources import known_sources
from services.contract.types import Draft, DraftTree, TakenDraft


def on_draft(turn: Turn, event: DraftArrived) -> None:
    """Append what is fresh and new to the tail."""
    state, draft = turn.state, event.draft
    if state.phase is not Phase.RUNNING or not _current(state, event):
        return
    if any(block.takes for block in state.live):
        if draft.base_committed_len > len(state.committed):
            turn.set(foreknown=event)
        return
    if _may_come_true(state, draft):
        turn.set(foreknown=event)
        return
    if not (_possible(state, draft) and _well_formed(state, draft)):
        turn.lose_drafter()
        return
    known_all = draft.base_committed_len == len(state.committed)
    if draft.final and known_all:
        turn.set(drafter_final=True)
    if draft.tree.token_ids:
        _absorb(turn, draft, known_all)


def on_foreknown(turn: Turn) -> None:
    """Take the draft that was ahead of a verdict, once the verdict is here."""
    if (draft := turn.state.foreknown) is not None:
        turn.set(foreknown=None)
        on_draft(turn, draft)


def _current(state: State, event: DraftArrived) -> bool:
    drafter = state.drafter
    return (
        drafter is not None and drafter.worker == event.worker and event.draft.epoch >= state.epoch
    )


def _possible(state: State, draft: Draft) -> bool:
    """Whether the drafter knows no more than we can have sent it."""
    return draft.epoch == state.epoch and draft.base_committed_len <= len(state.committed)


def _may_come_true(state: State, draft: Draft) -> bool:
    """Whether verdicts under way may confirm what the drafter knows; a rejection takes an epoch."""
    more = draft.base_committed_len - len(state.committed)
    if more <= 0 or not state.config.mode.exact_match:
        return False
    most = sum([1 + depth(block.piece.tree) for block in state.live])
    return more <= most and 0 <= draft.epoch - state.epoch <= len(state.live)


def _absorb(turn: Turn, draft: Draft, known_all: bool) -> None:
    state = turn.state
    end = state.end
    if draft.first_position > end or state.closed:
        turn.set(resync=state.resync or (known_all and draft.first_position > end))
        return
    known: tuple[int, ...] = ()
    if draft.first_position < end:
        known = (state.committed + state.speculated)[draft.first_position : end]
    if _hash_before(state, known) != draft.prefix_hash:
        return
    if not _append(turn, draft, known) and known_all:
        turn.set(resync=True)


def _append(turn: Turn, draft: Draft, known: tuple[int, ...]) -> bool:
    """Append the tokens that are new; False if the draft contradicts ours."""
    reach = draft.reach if turn.state.config.estimated else ()
    tree = with_its_rows(draft.tree if reach else draft.tree.normal())
    sources = known_sources(turn.state.config, draft.sources, len(draft.tree))
    if not known:
        turn.append(Piece(tree, draft.draft_ms, reach, sources))
        return True
    if reach or not tree.is_chain:
        return False
    shared = min(len(known), len(tree))
    if tree.token_ids[:shared] != known[:shared]:
        return False
    if shared < len(tree):
        fresh = slice_chain(tree, shared, len(tree))
        draft_ms = draft.draft_ms * len(fresh) / len(tree)
        turn.append(Piece(fresh, draft_ms, sources=sources[shared:]))
    return True


def _hash_before(state: State, known: tuple[int, ...]) -> int:
    """The rolling hash of the speculated text before its last tokens, the known ones."""
    return retract_hash(state.end_hash, known) if known else state.end_hash


def _well_formed(state: State, draft: Draft) -> bool:
    config, tree = state.config, draft.tree
    limit = config.vocab_size
    if limit and tree.token_ids and max(tree.token_ids) >= limit:
        return False
    return (
        _parents_fit(tree)
        and _laws_fit(config, tree)
        and _chances_fit(draft)
        and len(draft.sources) in (0, len(tree))
        and (tree.is_chain or _may_branch(config, tree))
        and draft.first_position + depth(tree) <= len(state.committed) + config.window
    )


def taken_fits(config: SessionConfig, taken: TakenDraft) -> bool:
    """Whether a verifier may have taken this: a valid tree with chances and sources, or none."""
    tree, limit = taken.tree, config.vocab_size
    known = not limit or not tree.token_ids or max(tree.token_ids) < limit
    return (
        known
        and len(tree) <= config.largest_block
        and tree.q is None
        and _parents_fit(tree)
        and len(taken.sources) in (0, len(tree))
        and len(taken.reach) == len(tree)
        and _falling(taken.reach)
    )


def _parents_fit(tree: DraftTree) -> bool:
    """One parent per token, each in front of its child."""
    parents = tree.parents
    if parents is None:
        return True
    ordered = all(-1 <= parent < node for node, parent in enumerate(parents))
    return len(parents) == len(tree) and ordered


def _laws_fit(config: SessionConfig, tree: DraftTree) -> bool:
    """No more distributions than nodes, none over more tokens than the vocabulary.

    The verifier checks whether they are distributions at all.
    """
    if not tree.q:
        return True
    longest, limit = max(len(row.token_ids) for row in tree.q), config.vocab_size
    return len(tree.q) <= config.largest_block + 1 and (not limit or longest <= limit)


def _chances_fit(draft: Draft) -> bool:
    """None, or one per token, from 0 to 1, none above the one before."""
    reach = draft.reach
    return not reach or (len(reach) == len(draft.tree) and _falling(reach))


def _falling(reach: tuple[float, ...]) -> bool:
    return all(1.0 >= left >= right for left, right in pairwise((1.0, *reach, 0.0)))


def _may_branch(config: SessionConfig, tree: DraftTree) -> bool:
    return config.num_candidates > 1 and len(tree) <= config.largest_block
