"""The round machine: `step(state, event) -> (state, actions)`.

Rules over all events (drafting.py, verdicts.py, sending.py and attachment.py open with theirs):

1. Committed tokens only grow; emitted tokens were stored before.
2. The next verify may leave before the store answers, but never while more than
   `max_unpersisted` commits wait for it.
3. Losing a worker bumps the epoch. Without a drafter the verifier decodes alone; without a
   verifier the session waits, then suspends. While this process stalls no time passes.
4. A suspended session holds no worker and has nothing in flight. A resume starts a new
   machine from what is stored, in a new term.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from orchestrator.core.attachment import (
    leave_the_overdue,
    lose_verifier,
    on_attached,
    on_lost,
    on_opened,
    on_states,
    refuse_verifier,
    suspend,
)
from orchestrator.core.drafting import on_draft, on_foreknown
from orchestrator.core.events import (
    AbortRequested,
    Action,
    Begin,
    Capped,
    Detached,
    DraftArrived,
    Emit,
    Event,
    Finish,
    Persisted,
    Reattached,
    SendToDrafter,
    StatesArrived,
    StoodStill,
    Tick,
    VerdictArrived,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.pacing import Policy
from orchestrator.core.sending import send_what_pays
from orchestrator.core.state import Attached, State
from orchestrator.core.turn import Turn
from orchestrator.core.verdicts import on_verdict
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.rounds import Ending, SuspendReason
from services.contract.types import (
    EMPTY_HASH,
    Credit,
    FinishReason,
    extend_hash,
)

EPOCHS_PER_TERM = 1 << 18
# Epochs are 32 bits wide on the wire and in the keys of random draws.
MOST_TERMS = (1 << 32) // EPOCHS_PER_TERM - 1
# A drafter that contradicts us this often is given up.
MOST_RESYNCS = 1024
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
        case DraftArrived():
            on_draft(turn, event)
        case VerdictArrived():
            if not on_verdict(turn, event):
                refuse_verifier(turn, "the verdict does not fit the session")
            on_foreknown(turn)
        case StatesArrived():
            on_states(turn, event)
        case Persisted():
            _on_persisted(turn, event)
        case Tick():
            _on_tick(turn)
        case StoodStill():
            _on_stood_still(turn, event.seconds)
        case Begin():
            _begin(turn)
        case Capped():
            _on_capped(turn, event)
        case WorkerAttached():
            on_attached(turn, event)
        case WorkerOpened():
            on_opened(turn, event)
        case WorkerLost():
            on_lost(turn, event)
        case Detached():
            turn.set(detached_at=turn.now)
        case Reattached():
            turn.set(detached_at=None)
        case AbortRequested():
            _on_abort(turn)
        case _:
            assert_never(event)
    _advance(turn, state)
    return turn.state, tuple(turn.actions)


def next_wake(state: State, now: float) -> float | None:
    """When the machine wants its next Tick, if nothing else happens before."""
    if state.phase is not Phase.RUNNING:
        return None
    limits = state.config.limits
    wake = state.began_at + limits.deadline
    if state.detached_at is not None:
        wake = min(wake, state.detached_at + limits.detach_grace)
    if state.wait_until is not None:
        wake = min(wake, state.wait_until)
    if (due := _verdict_due(state)) is not None:
        wake = min(wake, due)
    for attached in (state.verifier, state.drafter):
        if attached is not None and not attached.opened:
            wake = min(wake, attached.due)
    if state.lacks_worker:
        wake = min(wake, now + LOOK_AGAIN)
    return wake


def _verdict_due(state: State) -> float | None:
    """When the next verdict is overdue; None while none is due, or the opening comes first."""
    if not state.in_flight or state.verifier is None or not state.verifier.opened:
        return None
    return state.in_flight[0].sent_at + state.config.limits.verdict_wait


# --- Life ------------------------------------------------------------------------


def _begin(turn: Turn) -> None:
    if turn.state.phase is Phase.NEW:
        turn.set(phase=Phase.RUNNING, began_at=turn.now, verifier_missing_since=turn.now)
        turn.need_workers()


def _on_capped(turn: Turn, event: Capped) -> None:
    """Not for sampled trees: with another window the same places might be drawn again."""
    config = turn.state.config
    if config.mode.exact_match or config.num_candidates == 1:
        turn.set(cap=event.window)


def _on_persisted(turn: Turn, event: Persisted) -> None:
    """Emit what the store has acknowledged, in order."""
    waiting = turn.state.unpersisted
    while waiting and waiting[0].record.round <= event.round:
        commit, waiting = waiting[0], waiting[1:]
        turn.set(unpersisted=waiting)
        turn.do(Emit(commit))
        if commit.ending is not None:
            turn.set(phase=Phase.DONE)
            turn.do(Finish(commit.ending))
    if turn.state.phase is Phase.FINISHING and not waiting:
        suspend(turn, SuspendReason.IMPOSSIBLE, turn.state.verifier_left)


def _on_tick(turn: Turn) -> None:
    state, limits = turn.state, turn.state.config.limits
    if state.phase is not Phase.RUNNING:
        return
    if state.detached_at is not None and turn.now >= state.detached_at + limits.detach_grace:
        suspend(turn, SuspendReason.DETACHED)
    elif turn.now >= state.began_at + limits.deadline:
        suspend(turn, SuspendReason.DEADLINE)
    elif state.verifier is None and turn.now >= state.verifier_missing_since + limits.verifier_wait:
        suspend(turn, SuspendReason.NO_VERIFIER, state.verifier_left)
    elif (due := _verdict_due(state)) is not None and turn.now >= due:
        lose_verifier(turn, "it gave no verdict in time")
    else:
        leave_the_overdue(turn)


def _on_stood_still(turn: Turn, seconds: float) -> None:
    """Move every deadline back by the time that this process stalled."""
    state = turn.state
    detached = state.detached_at
    blocks = [block._replace(sent_at=block.sent_at + seconds) for block in state.in_flight]
    turn.set(
        began_at=state.began_at + seconds,
        idle_since=state.idle_since + seconds,
        verifier_missing_since=state.verifier_missing_since + seconds,
        detached_at=None if detached is None else detached + seconds,
        in_flight=tuple(blocks),
        verifier=_later(state.verifier, seconds),
        drafter=_later(state.drafter, seconds),
    )


def _later(attached: Attached | None, seconds: float) -> Attached | None:
    return None if attached is None else replace(attached, due=attached.due + seconds)


def _on_abort(turn: Turn) -> None:
    if turn.state.phase in (Phase.DONE, Phase.FINISHING):
        return
    turn.release_all()
    turn.set(phase=Phase.DONE, unpersisted=())
    turn.do(Finish(Ending(FinishReason.ABORT)))


# --- Asking for more -------------------------------------------------------------


def _advance(turn: Turn, before: State) -> None:
    """After every event: repair, set the drafter's window, send what may be sent."""
    if turn.state.phase is not Phase.RUNNING:
        return
    if turn.state.resync and not turn.state.live:
        _resync(turn)
    _set_credit(turn, before)
    send_what_pays(turn)


def _resync(turn: Turn) -> None:
    """Restart the drafter; one that needs it too often is lost."""
    turn.set(resyncs=turn.state.resyncs + 1)
    if turn.state.resyncs % MOST_RESYNCS:
        turn.resync_drafter()
    else:
        turn.lose_drafter()


def _set_credit(turn: Turn, before: State) -> None:
    state = turn.state
    same = state.policy is before.policy and state.drafter is before.drafter
    if same and state.cap == before.cap:
        # The window follows from these.
        return
    window = state.window
    if state.drafter is not None and window != state.credit:
        turn.set(credit=window, drafter_final=False)
        turn.do(SendToDrafter(state.drafter.worker, Credit(state.config.session, window)))
