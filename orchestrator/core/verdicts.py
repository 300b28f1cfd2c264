"""A verdict arrives.

1. Verdicts are absorbed in the order of their rounds; one that comes early
   waits, one whose round is not in flight is dropped.
2. Accepted tokens and the one after them are committed, cut at the first stop
   token, stop string or the length limit.
3. Rejected: the epoch is bumped, the tail is void, later blocks are doomed.
4. Accepted to a leaf, and a bonus: what follows survives if and only if it
   starts with the bonus. That keeps the law in `STANDARD` and `BLOCK`, too: the
   bonus is the target's own draw, made without a look at the draft, and what
   the drafter drew after the same token it drew after the same text.
5. In `STANDARD` and `BLOCK` no place in the text is drawn twice in an epoch,
   so the drafter's text never departs from ours within one: where it may have,
   and no tail tells that it has not, the epoch is bumped. Where tokens follow
   from the text and the noise alone, drawing again brings the same ones.
6. Order of effects: persist, tell the drafter; emission waits for the store.
7. A verdict that contradicts our text means that this verifier has lost the
   session: it is opened again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from orchestrator.core.drafts import after_bonus, depth, drop_front
from orchestrator.core.events import (
    Commit,
    Discarded,
    Ending,
    Persist,
    RoundRecord,
    VerdictArrived,
)
from orchestrator.core.pacing import Outcome
from orchestrator.core.state import Block, Phase, State
from orchestrator.core.turn import Turn
from services.common.types import DraftTree, FinishReason, Origin, Verdict, extend_hash


def on_verdict(turn: Turn, event: VerdictArrived) -> bool:
    """Absorb every verdict whose turn it is; False if the verifier lost the session."""
    state = turn.state
    verifier = state.verifier
    if state.phase is not Phase.RUNNING or verifier is None or verifier.worker != event.worker:
        return True
    waiting = {v.round: v for v in (*state.early, event.verdict)}
    while (flying := turn.state.in_flight) and (verdict := waiting.pop(flying[0].round, None)):
        turn.set(in_flight=flying[1:])
        if not _absorb(turn, flying[0], verdict):
            return False
    rounds = {block.round for block in turn.state.in_flight}
    turn.set(early=tuple(v for v in waiting.values() if v.round in rounds))
    return True


def _absorb(turn: Turn, block: Block, verdict: Verdict) -> bool:
    turn.set(idle_since=turn.now)
    if verdict.discarded:
        turn.do(Discarded(_record(turn, block, verdict, 0, len(block.piece.tree))))
        return block.doomed
    if block.doomed or not _consistent(turn, block, verdict):
        return False
    tokens, ending = _cut(turn, verdict.token_ids)
    commit = _commit(turn, block, verdict, tokens, ending)
    _learn(turn, block, verdict, len(tokens))
    _extend_text(turn, commit)
    if ending is not None:
        turn.set(phase=Phase.FINISHING)
        turn.release_all()
    else:
        _carry_tail_over(turn, block, verdict)
        turn.tell_drafter(commit.base_len, tokens)
    return True


def _consistent(turn: Turn, block: Block, verdict: Verdict) -> bool:
    """Whether the verdict follows our text and accepts only what we sent."""
    extra = len(verdict.token_ids) - verdict.accepted
    drafted = verdict.token_ids[: verdict.accepted]
    tree = block.piece.tree
    if tree.is_chain:
        sent = tree.token_ids[: verdict.accepted]
        if verdict.all_accepted != (verdict.accepted == len(tree)):
            return False
    else:
        nodes = verdict.accepted_nodes
        if not _is_path(tree, nodes):
            return False
        sent = tuple(tree.token_ids[node] for node in nodes)
    follows = verdict.base_len == block.base_len == len(turn.state.committed)
    return follows and drafted == sent and bool(verdict.token_ids) and extra in (0, 1)


def _is_path(tree: DraftTree, nodes: tuple[int, ...]) -> bool:
    """Whether the nodes lead from the root downwards, each the child of the one before."""
    parents = tree.parents or ()
    if any(not 0 <= node < len(tree) for node in nodes):
        return False
    return all(parents[node] == above for above, node in pairwise((-1, *nodes)))


def _cut(turn: Turn, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], Ending | None]:
    """The tokens up to the first thing that ends the output, and that ending."""
    config = turn.state.config
    room = config.sampling.max_tokens - len(turn.state.committed)
    keep, ending = len(tokens), None
    if keep >= room:
        keep, ending = room, Ending(FinishReason.LENGTH)
    stops = config.sampling.stop_token_ids
    stopped = next((i for i, token in enumerate(tokens[:keep]) if token in stops), None)
    if stopped is not None:
        keep = stopped + 1
        ending = Ending(FinishReason.STOP, matched_token=tokens[stopped])
    text = config.find_stop(turn.fresh + tokens[:keep])
    if text is not None:
        keep = text.keep - len(turn.fresh)
        ending = Ending(FinishReason.STOP, matched_text=text.text)
    return tokens[:keep], ending


def _commit(
    turn: Turn, block: Block, verdict: Verdict, tokens: tuple[int, ...], ending: Ending | None
) -> Commit:
    last = Origin.BONUS if verdict.all_accepted else Origin.RECOVERED
    origins = tuple(Origin.ACCEPTED if i < verdict.accepted else last for i in range(len(tokens)))
    record = _record(turn, block, verdict, len(tokens), 0)
    logprobs = verdict.logprobs[: len(tokens)]
    return Commit(record, len(turn.state.committed), tokens, origins, logprobs, ending)


def _record(
    turn: Turn, block: Block, verdict: Verdict, emitted: int, discarded: int
) -> RoundRecord:
    verifier = turn.state.verifier
    return RoundRecord(
        index=block.round,
        epoch=block.epoch,
        base_len=verdict.base_len,
        draft_tokens=len(block.piece.tree),
        accepted_tokens=verdict.accepted,
        emitted_tokens=emitted,
        draft_ms=block.piece.draft_ms,
        verify_ms=verdict.verify_ms,
        queue_ms=verdict.queue_ms,
        round_ms=1e3 * (turn.now - block.sent_at),
        batch_size=verdict.batch_size,
        drafter=block.drafter,
        verifier=verifier.worker if verifier else "",
        mode=verdict.mode,
        started_at=block.sent_at,
        ended_at=turn.now,
        discarded_tokens=discarded,
        bad_q_rows=verdict.bad_q_rows,
    )


def _learn(turn: Turn, block: Block, verdict: Verdict, emitted: int) -> None:
    tree = block.piece.tree
    outcome = Outcome(
        len(tree),
        verdict.accepted,
        emitted,
        1e3 * (turn.now - block.sent_at),
        block.piece.draft_ms,
        waited_ms=block.waited_ms,
        levels=None if tree.is_chain else depth(tree),
        whole=verdict.all_accepted,
        guessed=_guessed(turn, verdict),
    )
    turn.set(policy=turn.state.policy.observe(outcome), verifier_failures=0)


def _guessed(turn: Turn, verdict: Verdict) -> bool | None:
    """Whether the target's own token, no longer a secret, is the next one of the tail."""
    tail, own = turn.state.tail, verdict.token_ids[verdict.accepted :]
    if not verdict.all_accepted or not own or turn.state.live:
        return None
    if not tail or not tail[0].tree.is_chain:
        return None
    return after_bonus(tail, own[0]) is not None


def _extend_text(turn: Turn, commit: Commit) -> None:
    state = turn.state
    turn.set(
        committed=state.committed + commit.token_ids,
        committed_hash=extend_hash(state.committed_hash, commit.token_ids),
        unpersisted=(*state.unpersisted, commit),
    )
    turn.fresh += commit.token_ids
    turn.do(Persist(commit))


def _carry_tail_over(turn: Turn, block: Block, verdict: Verdict) -> None:
    bonus = verdict.token_ids[verdict.accepted :]
    if not verdict.all_accepted or (bonus and not _confirmed(turn, bonus[0])):
        turn.doom()
        turn.bump_epoch()
    elif not bonus and _drafter_may_differ(turn.state, block):
        turn.bump_epoch()


def _drafter_may_differ(state: State, block: Block) -> bool:
    """Whether the drafter of now may have drawn other tokens where the block's stand.

    It has the block in its own text when it drafted it, or when its tail follows it.
    """
    if state.config.mode.exact_match or state.drafter is None:
        return False
    return block.epoch != state.epoch and not state.tail


def _confirmed(turn: Turn, bonus: int) -> bool:
    """Whether what was drafted after the block starts with the bonus, which it then loses."""
    state = turn.state
    if state.live:
        block = state.live[0]
        tokens = block.piece.tree.token_ids
        if not block.piece.tree.is_chain or not tokens or tokens[0] != bonus:
            return False
        shorter = replace(block, base_len=block.base_len + 1, piece=drop_front(block.piece, 1))
        turn.set(in_flight=tuple(shorter if b is block else b for b in state.in_flight))
        return True
    if not state.tail:
        return state.config.mode.exact_match or state.drafter is None
    rest = after_bonus(state.tail, bonus)
    if rest is not None:
        turn.set(tail=rest)
    return rest is not None
