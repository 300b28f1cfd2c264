"""A verdict arrives.

1. Verdicts are absorbed in the order of their rounds; one that comes early
   waits, one whose round is not in flight is dropped.
2. Accepted tokens and the one after them are committed, cut at the first stop
   token, stop string or the length limit.
3. Rejected: the epoch is bumped, the tail is void, later blocks are doomed.
4. Accepted to a leaf, and a bonus: the tail survives if and only if it starts with
   the bonus. That keeps the output distribution in `STANDARD` and `BLOCK`, too: the
   bonus is the target's own draw, independent of the draft, and what the drafter drew
   after the same token it drew after the same text.
5. In `STANDARD` and `BLOCK` no place in the text is drawn twice in an epoch, so the
   drafter's text never departs from ours within one. Where it may have, and no tail
   proves the contrary, the epoch is bumped. Where tokens follow from the text and the
   noise alone, drawing again gives the same ones.
6. Order of effects: persist, tell the drafter; emission waits for the store. A drafter
   beside the verifier, whose trees are taken there, gets commits for several rounds in one
   message: they confirm the verdicts that it got, and supply those that it missed. States of
   the target go with a commit as they came with its verdicts, of all its tokens or of none.
7. A verdict that contradicts our text or answers a block that was never sent means that
   this verifier has lost the session: it is opened again. So does a token beyond the
   vocabulary, and logprobs that are invalid or that were not asked for.
"""

from __future__ import annotations

from itertools import pairwise

from orchestrator.core.drafting import taken_fits
from orchestrator.core.drafts import Piece, after_bonus, depth, drop_front
from orchestrator.core.events import Discarded, Persist, VerdictArrived
from orchestrator.core.pacing import FinishedRound
from orchestrator.core.state import Block, State
from orchestrator.core.turn import Turn
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.logprobs import rows_fit
from orchestrator.steering.rounds import Commit, Ending, RoundRecord, SourceCount
from orchestrator.steering.sources import known_sources
from services.contract.top_rows import fits
from services.contract.types import (
    DraftTree,
    FinishReason,
    Origin,
    TakenDraft,
    Verdict,
    extend_hash,
)

TELL_EVERY = 4
"""Rounds in one commit to a drafter that gets verdicts beside the verifier."""


def on_verdict(turn: Turn, event: VerdictArrived) -> bool:
    """Absorb the verdicts whose turn has come; False if the verifier lost the session."""
    state = turn.state
    verifier = state.verifier
    if state.phase is not Phase.RUNNING or verifier is None or verifier.worker != event.worker:
        return True
    if event.verdict.round >= state.next_round:
        return False
    waiting = {v.round: v for v in (*state.early, event.verdict)}
    while (flying := turn.state.in_flight) and (verdict := waiting.pop(flying[0].round, None)):
        turn.set(in_flight=flying[1:])
        if not _absorb(turn, _begun(turn, flying[0], verdict), verdict):
            return False
    if waiting or state.early:
        rounds = {block.round for block in turn.state.in_flight}
        turn.set(early=tuple([v for v in waiting.values() if v.round in rounds]))
    return True


def _begun(turn: Turn, block: Block, verdict: Verdict) -> Block:
    """The block; one that was sent ahead begins when the round before it ends, or its step."""
    if not (block.opening or block.behind):
        return block
    due = max(block.sent_at, turn.state.idle_since) if block.behind else block.sent_at
    return block._replace(sent_at=min(due, turn.now - 1e-3 * verdict.verify_ms))


def _absorb(turn: Turn, block: Block, verdict: Verdict) -> bool:
    if verdict.discarded:
        turn.do(Discarded(_record(turn, block, verdict, 0, discarded_tokens=len(block.piece.tree))))
        old = block.behind and not block.takes
        turn.set(refuses_behind=turn.state.refuses_behind or old)
        return block.doomed or block.behind
    if block.takes != (verdict.taken is not None):
        return False
    if verdict.taken is not None:
        if not taken_fits(turn.state.config, verdict.taken):
            return False
        block = _with_taken(turn.state.config, block, verdict, verdict.taken)
    if block.doomed or not _consistent(turn, block, verdict):
        return False
    tokens, ending = _cut(turn, verdict.token_ids)
    guessed = _guessed(turn, verdict)
    commit = _commit(turn, block, verdict, tokens, ending, guessed)
    _learn(turn, block, verdict, len(tokens), guessed)
    _extend_text(turn, commit)
    if ending is not None:
        turn.set(phase=Phase.FINISHING)
        turn.release_all()
    else:
        _carry_tail_over(turn, block, verdict)
        _tell_drafter(turn, verdict)
    return True


def _tell_drafter(turn: Turn, verdict: Verdict) -> None:
    """Send the drafter the commit; one beside the verifier gets several in one message."""
    state = turn.state
    hears = verdict.taken is not None and state.drafter is not None and state.drafter.beside
    if hears and state.untold_rounds + 1 < TELL_EVERY:
        turn.set(untold_rounds=state.untold_rounds + 1, drafter_final=False)
        turn.set(untold_states=(*state.untold_states, verdict.states))
    else:
        states = _states_for_the_drafter(state, verdict)
        turn.tell_drafter(_rows_for_the_drafter(turn, verdict), states)


def _with_taken(config: SessionConfig, block: Block, verdict: Verdict, taken: TakenDraft) -> Block:
    """The block as if it had been sent with the tree that it took, at that place."""
    tree = taken.tree.normal()
    sources = known_sources(config, taken.sources, len(tree)) if len(tree) else b""
    piece = Piece(tree, taken.draft_ms, taken.reach, sources)
    drafter = block.drafter if len(tree) else ""
    return block._replace(base_len=verdict.base_len, piece=piece, drafter=drafter)


def _rows_for_the_drafter(turn: Turn, verdict: Verdict) -> bytes:
    """The target's rows for the drafter; empty where they are not as asked for."""
    rows, width = verdict.top_rows, turn.state.config.top_rows
    return rows if rows and fits(rows, width) else b""


def _states_for_the_drafter(state: State, verdict: Verdict) -> bytes:
    """The target's states for all tokens that the drafter is told now; empty if some lack them."""
    parts = (*state.untold_states, verdict.states)
    if state.drafter is None or not state.config.states.layers or not all(parts):
        return b""
    joined = parts[0] if len(parts) == 1 else b"".join(parts)
    tokens = len(state.committed) - state.told
    return joined if len(joined) == tokens * state.config.states.row_bytes else b""


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
    follows = follows and verdict.epoch == block.epoch
    if not (follows and drafted == sent and verdict.token_ids and extra in (0, 1)):
        return False
    config = turn.state.config
    return _known(config, verdict.token_ids[-1:]) and _logprobs_fit(config, verdict)


def _known(config: SessionConfig, tokens: tuple[int, ...]) -> bool:
    """Whether the vocabulary holds these tokens."""
    return not config.vocab_size or not tokens or max(tokens) < config.vocab_size


def _logprobs_fit(config: SessionConfig, verdict: Verdict) -> bool:
    """One row per token if they were asked for, with no more alternatives than asked for."""
    asked = config.sampling.logprobs
    if asked is None:
        return not verdict.logprobs
    whole = len(verdict.logprobs) == len(verdict.token_ids)
    return whole and rows_fit(verdict.logprobs, asked, config.vocab_size)


def _is_path(tree: DraftTree, nodes: tuple[int, ...]) -> bool:
    """Whether the nodes lead from the root downwards, each the child of the one before."""
    parents = tree.parents or ()
    if any(not 0 <= node < len(tree) for node in nodes):
        return False
    return all(parents[node] == above for above, node in pairwise((-1, *nodes)))


def _cut(turn: Turn, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], Ending | None]:
    """The tokens up to the first ending of the output, and that ending."""
    config = turn.state.config
    room = config.sampling.max_tokens - len(turn.state.committed)
    keep, ending = len(tokens), None
    if keep >= room:
        keep, ending = room, Ending(FinishReason.LENGTH)
    stops = config.sampling.stop_token_ids
    stopped = [i for i in range(keep) if tokens[i] in stops] if stops else []
    if stopped:
        keep = stopped[0] + 1
        ending = Ending(FinishReason.STOP, matched_token=tokens[stopped[0]])
    text = config.find_stop(turn.fresh + tokens[:keep])
    if text is not None:
        keep = text.keep - len(turn.fresh)
        ending = Ending(FinishReason.STOP, matched_text=text.text)
    return tokens[:keep], ending


def _commit(
    turn: Turn,
    block: Block,
    verdict: Verdict,
    tokens: tuple[int, ...],
    ending: Ending | None,
    guessed: bool | None,
) -> Commit:
    # A rejection voids the drafts beyond the block, and so does a token that was not guessed.
    void = ending is not None or not verdict.all_accepted or guessed is False
    last = Origin.BONUS if verdict.all_accepted else Origin.RECOVERED
    accepted = min(verdict.accepted, len(tokens))
    origins = (Origin.ACCEPTED,) * accepted + (last,) * (len(tokens) - accepted)
    record = _record(
        turn,
        block,
        verdict,
        len(tokens),
        rejected=_rejected(block.piece.tree, verdict),
        unjudged=turn.state.speculated if void else (),
        sources=_by_source(block.piece, verdict),
    )
    logprobs = verdict.logprobs[: len(tokens)]
    return Commit((record,), len(turn.state.committed), tokens, origins, logprobs, ending)


def _rejected(tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
    if tree.is_chain:
        return tree.token_ids[verdict.accepted :]
    taken = frozenset(verdict.accepted_nodes)
    return tuple(token for node, token in enumerate(tree.token_ids) if node not in taken)


def _by_source(piece: Piece, verdict: Verdict) -> tuple[SourceCount, ...]:
    """The block's draft tokens and accepted ones, by source."""
    sources = piece.sources
    if not sources:
        return ()
    taken = sources[: verdict.accepted]
    if not piece.tree.is_chain:
        taken = bytes([sources[node] for node in verdict.accepted_nodes])
    return tuple(
        [SourceCount(one, sources.count(one), taken.count(one)) for one in sorted(set(sources))]
    )


def _record(
    turn: Turn,
    block: Block,
    verdict: Verdict,
    emitted: int,
    *,
    discarded_tokens: int = 0,
    rejected: tuple[int, ...] = (),
    unjudged: tuple[int, ...] = (),
    sources: tuple[SourceCount, ...] = (),
) -> RoundRecord:
    verifier = turn.state.verifier
    return RoundRecord(
        round=block.round,
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
        discarded_tokens=discarded_tokens,
        bad_q_rows=verdict.bad_q_rows,
        near_ties=verdict.near_ties,
        rejected=rejected,
        unjudged=unjudged,
        sources=sources,
    )


def _learn(turn: Turn, block: Block, verdict: Verdict, emitted: int, guessed: bool | None) -> None:
    if turn.state.verifier_failures:
        turn.set(verifier_failures=0)
    if block.opening:
        return
    tree = block.piece.tree
    outcome = FinishedRound(
        len(tree),
        verdict.accepted,
        emitted,
        1e3 * (turn.now - block.sent_at),
        block.piece.draft_ms,
        waited_ms=block.waited_ms,
        levels=None if tree.is_chain else depth(tree),
        whole=verdict.all_accepted,
        guessed=guessed,
        elapsed_ms=1e3 * (turn.now - turn.state.idle_since),
        verify_ms=verdict.verify_ms,
        queue_ms=verdict.queue_ms,
        batch_size=verdict.batch_size,
        batch_rows=verdict.batch_rows,
        chained=block.chained,
        tail_ms=_tail_ms(turn.state),
        reach=block.piece.reach,
        taken=_taken(block, verdict),
    )
    turn.set(policy=turn.state.policy.observe(outcome))


def _taken(block: Block, verdict: Verdict) -> tuple[int, ...]:
    """The accepted nodes of a draft whose nodes carry chances."""
    if not block.piece.reach:
        return ()
    return tuple(range(verdict.accepted)) if block.piece.tree.is_chain else verdict.accepted_nodes


def _tail_ms(state: State) -> float:
    """Milliseconds per token that was drafted beyond the block; 0 = none was."""
    if not state.tail or not state.tail[0].is_chain:
        return 0.0
    return state.tail[0].draft_ms / len(state.tail[0].tree)


def _guessed(turn: Turn, verdict: Verdict) -> bool | None:
    """Whether the target's own token, public by now, is the one that was drafted next."""
    live, own = turn.state.live, verdict.token_ids[verdict.accepted :]
    tail = (live[0].piece,) if live and not live[0].behind else turn.state.tail
    if not verdict.all_accepted or not own:
        return None
    if not tail or not tail[0].is_chain:
        return None
    return after_bonus(tail, own[0]) is not None


def _extend_text(turn: Turn, commit: Commit) -> None:
    state = turn.state
    turn.set(
        committed=state.committed + commit.token_ids,
        committed_hash=extend_hash(state.committed_hash, commit.token_ids),
        unpersisted=(*state.unpersisted, commit),
        idle_since=turn.now,
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
    """Whether the current drafter may have drawn other tokens in the block's places.

    It has the block in its text if it drafted it, or if its tail follows it.
    """
    if state.config.mode.exact_match or state.drafter is None:
        return False
    return block.epoch != state.epoch and not state.tail


def _confirmed(turn: Turn, bonus: int) -> bool:
    """Whether the draft after the block starts with the bonus, which is then cut off."""
    state = turn.state
    if state.live and not state.live[0].behind:
        block = state.live[0]
        tokens = block.piece.tree.token_ids
        if not block.piece.is_chain or not tokens or tokens[0] != bonus:
            return False
        shorter = block._replace(base_len=block.base_len + 1, piece=drop_front(block.piece, 1))
        turn.set(in_flight=tuple(shorter if b is block else b for b in state.in_flight))
        return True
    if not state.tail:
        return state.config.mode.exact_match or state.drafter is None
    rest = after_bonus(state.tail, bonus)
    if rest is not None:
        turn.set(tail=rest)
    return rest is not None
