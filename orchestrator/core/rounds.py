"""The round machine: `step(state, event) -> (state, actions)`.

Rules that hold over all events (those of drafts and verdicts open their files):

1. Committed tokens only grow; what is emitted was stored before.
2. The next verify may leave before the store answers, but never with more than
   `max_unpersisted` commits waiting for it.
3. A verify leaves when a verifier has the session open, fewer than
   `max_in_flight` live blocks are under way, and pacing says so. A chained
   block follows a chain of its own epoch and holds at least one token; in
   `STANDARD` and `BLOCK` it never follows a block that asks for a bonus.
4. Whether a block asks for a bonus is fixed when it leaves, by counts and flags
   alone: `_wants_bonus`.
5. The loss of a worker bumps the epoch. Without a drafter the verifier decodes
   alone; without a verifier the session waits, then suspends.
6. A suspended session holds no worker and has nothing in flight. Whoever resumes
   it starts a new machine from what is stored, in a new term.
"""

from __future__ import annotations

from typing import assert_never

from orchestrator.core.attachment import lose_verifier, on_attached, on_lost, on_opened, suspend
from orchestrator.core.drafting import on_draft
from orchestrator.core.drafts import Piece, Tail, take
from orchestrator.core.events import (
    AbortRequested,
    Action,
    Begin,
    Detached,
    DraftArrived,
    Emit,
    Ending,
    Event,
    Finish,
    Persisted,
    Reattached,
    SendToDrafter,
    SendVerify,
    SuspendReason,
    Tick,
    VerdictArrived,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.pacing import Policy, View, Wait
from orchestrator.core.state import Block, Phase, SessionConfig, State
from orchestrator.core.turn import Turn
from orchestrator.core.verdicts import on_verdict
from services.common.types import (
    EMPTY_HASH,
    Credit,
    DraftTree,
    FinishReason,
    Verify,
    extend_hash,
)

EPOCHS_PER_TERM = 1 << 18
# Seconds until a missing worker is asked for again.
LOOK_AGAIN = 0.25


def new_session(config: SessionConfig, policy: Policy, committed: tuple[int, ...] = ()) -> State:
    """A session before its first event; `committed` is what an earlier owner stored.

    Epochs of different terms never meet: random draws are keyed by them.
    """
    return State(
        config,
        policy,
        epoch=1 + (config.term - 1) * EPOCHS_PER_TERM,
        committed=committed,
        committed_hash=extend_hash(EMPTY_HASH, committed),
    )


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Absorb one event. Pure; raises nothing for late, doubled or foreign events."""
    turn = Turn(state, event.at)
    match event:
        case Begin():
            _begin(turn)
        case WorkerAttached():
            on_attached(turn, event)
        case WorkerOpened():
            on_opened(turn, event)
        case WorkerLost():
            on_lost(turn, event)
        case DraftArrived():
            on_draft(turn, event)
        case VerdictArrived():
            if not on_verdict(turn, event):
                lose_verifier(turn, "the verdict does not fit the session")
        case Persisted():
            _on_persisted(turn, event)
        case Tick():
            _on_tick(turn)
        case Detached():
            turn.set(detached_at=turn.now)
        case Reattached():
            turn.set(detached_at=None)
        case AbortRequested():
            _on_abort(turn)
        case _:
            assert_never(event)
    _advance(turn)
    return turn.state, tuple(turn.actions)


def next_wake(state: State, now: float) -> float | None:
    """When the machine wants its next Tick, if nothing else happens before."""
    if state.phase is not Phase.RUNNING:
        return None
    limits = state.config.limits
    times = [state.began_at + limits.deadline]
    if state.detached_at is not None:
        times.append(state.detached_at + limits.detach_grace)
    if state.wait_until is not None:
        times.append(state.wait_until)
    if state.verifier is None or (state.drafter is None and state.wants_drafter):
        times.append(now + LOOK_AGAIN)
    return min(times)


# --- Life ------------------------------------------------------------------------


def _begin(turn: Turn) -> None:
    if turn.state.phase is Phase.NEW:
        turn.set(phase=Phase.RUNNING, began_at=turn.now, verifier_missing_since=turn.now)
        turn.need_workers()


def _on_persisted(turn: Turn, event: Persisted) -> None:
    """Emit what the store has acknowledged, in order."""
    waiting = turn.state.unpersisted
    while waiting and waiting[0].record.index <= event.round:
        commit, waiting = waiting[0], waiting[1:]
        turn.set(unpersisted=waiting)
        turn.do(Emit(commit))
        if commit.ending is not None:
            turn.set(phase=Phase.DONE)
            turn.do(Finish(commit.ending))


def _on_tick(turn: Turn) -> None:
    state, limits = turn.state, turn.state.config.limits
    if state.phase is not Phase.RUNNING:
        return
    if state.detached_at is not None and turn.now >= state.detached_at + limits.detach_grace:
        suspend(turn, SuspendReason.DETACHED)
    elif turn.now >= state.began_at + limits.deadline:
        suspend(turn, SuspendReason.DEADLINE)
    elif state.verifier is None and turn.now >= state.verifier_missing_since + limits.verifier_wait:
        suspend(turn, SuspendReason.NO_VERIFIER)
    else:
        turn.need_workers()


def _on_abort(turn: Turn) -> None:
    if turn.state.phase in (Phase.DONE, Phase.FINISHING):
        return
    turn.release_all()
    turn.set(phase=Phase.DONE, unpersisted=())
    turn.do(Finish(Ending(FinishReason.ABORT)))


# --- Asking for more -------------------------------------------------------------


def _advance(turn: Turn) -> None:
    """After every event: repair, set the drafter's window, send what may be sent."""
    if turn.state.phase is not Phase.RUNNING:
        return
    if turn.state.resync and not turn.state.live:
        turn.resync_drafter()
    _set_credit(turn)
    waited = turn.state.wait_until is not None
    turn.set(wait_until=None)
    while _may_send(turn.state):
        state = turn.state
        decision = state.policy.decide(_view(state, turn.now))
        if isinstance(decision, Wait):
            turn.set(wait_until=decision.until)
            return
        if state.live and (decision.count == 0 or not state.tail):
            return
        _send(turn, decision.count, 1e3 * (turn.now - state.idle_since) if waited else 0.0)
        waited = False


def _set_credit(turn: Turn) -> None:
    state = turn.state
    window = state.policy.window
    if state.drafter is not None and window != state.credit:
        turn.set(credit=window, drafter_final=False)
        turn.do(SendToDrafter(state.drafter.worker, Credit(state.config.session, window)))


def _may_send(state: State) -> bool:
    live, limits = state.live, state.config.limits
    if state.verifier is None or not state.verifier.opened:
        return False
    if len(state.unpersisted) >= limits.max_unpersisted:
        return False
    if not live:
        return True
    chainable = all(_chainable(state, block) for block in live)
    return len(live) < limits.max_in_flight and chainable and bool(state.tail) and _room(state) > 0


def _chainable(state: State, block: Block) -> bool:
    open_end = state.config.mode.exact_match or not block.want_bonus
    return open_end and block.piece.tree.is_chain and block.epoch == state.epoch


def _room(state: State) -> int:
    """Draft tokens that still fit before the length limit, with one token after them."""
    done = len(state.committed) + len(state.flying)
    return max(0, state.config.sampling.max_tokens - done - 1)


def _view(state: State, now: float) -> View:
    drafter = state.drafter
    drafting = drafter is not None and drafter.opened and not state.drafter_final
    return View(
        now=now,
        idle_since=state.idle_since,
        drafted=state.drafted,
        drafting=drafting and state.credit > 0,
        room=_room(state),
    )


def _wants_bonus(state: State, piece: Piece, rest: Tail) -> bool:
    """Whether this block, if all of it is accepted, is to end with a token of the target's own.

    Where drafts are matched exactly, always: that token comes next whatever was
    drafted. In `STANDARD` and `BLOCK` it is a fresh draw, equal to a drafted
    token at its place by chance only, so that what was drafted beyond would
    be lost. It is asked for where nothing was, or can be: after a tree; where
    the block reaches the length limit; and where no tail is left and the
    drafter rests until this very verdict.

    Both ways keep the law. Once every token of a block is accepted, the text has
    the law of the target; what comes next keeps it, be it drawn from the target
    at once, or left to a later block that starts there with nothing carried over
    (Leviathan et al. 2023, appendix A.1; Sun et al. 2024, where p_0 = 1). Only
    the choice must not know more than what was sent: it reads lengths and
    flags, and no token of the tail.
    """
    if state.config.mode.exact_match or not piece.tree.token_ids or not piece.tree.is_chain:
        return True
    if len(piece.tree) >= _room(state):
        return True
    return not rest and not state.live and _drafter_rests(state, len(piece.tree))


def _drafter_rests(state: State, sent: int) -> bool:
    """Whether nothing is drafted beyond `sent` tokens before a verdict or a credit comes."""
    return state.drafter is None or state.drafter_final or sent >= state.credit


def _send(turn: Turn, count: int, waited_ms: float) -> None:
    state = turn.state
    assert state.verifier is not None
    piece, rest = take(state.tail, count)
    live = state.live
    verify = Verify(
        state.config.session,
        state.epoch,
        state.next_round,
        len(state.committed) + len(state.flying),
        piece.tree if piece.tree.token_ids else DraftTree(),
        extends_round=live[-1].round if live else 0,
        want_bonus=_wants_bonus(state, piece, rest),
    )
    drafter = state.drafter.worker if state.drafter and piece.tree.token_ids else ""
    block = Block(
        verify.round,
        verify.epoch,
        verify.base_len,
        piece,
        turn.now,
        drafter,
        verify.want_bonus,
        waited_ms=waited_ms,
    )
    turn.set(tail=rest, in_flight=(*state.in_flight, block), next_round=state.next_round + 1)
    turn.do(SendVerify(state.verifier.worker, verify, piece.draft_ms))
