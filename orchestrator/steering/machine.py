"""The machine of a session whose verifier runs it: `step(state, event) -> (state, actions)`.

What an event does in each phase; `-`: nothing, it is late or comes too early.

    event           NEW     RUNNING  FINISHING  SUSPENDED  DONE
    Begin           begin   -        -          -          -
    WorkerAttached  -       open     -          -          -
    Started         -       note     -          -          -
    StepsTaken      -       store    -          -          -
    StatesTold      -       hand on  -          -          -
    Waited          -       note     -          -          -
    WorkerLost      -       replace  -          -          -
    Persisted       -       emit     emit       -          -
    Capped          note    resize   -          -          -
    Detached        note    note     -          -          -
    Reattached      note    note     -          -          -
    AbortRequested  end     end      -          -          -
    Tick            -       give up  give up    -          -
    StoodStill      -       wait     wait       -          -

Rules over all events (openings.py, taking.py, storing.py and credit.py open with theirs):

1. What was received only grows; emitted tokens were stored before.
2. Nobody asks for a step. A verifier runs ahead of the store by a credit, and no further.
3. A verifier that is silent about a session, though it has credit and gives no reason, has lost it.
   While this process stalls no time passes.
4. A suspended session holds no worker. A resume starts a new machine from what is stored, in a new
   term.
"""

from __future__ import annotations

from typing import assert_never

from orchestrator.steering.config import Phase
from orchestrator.steering.events import (
    AbortRequested,
    Action,
    Begin,
    Capped,
    Detached,
    Event,
    Finish,
    Persisted,
    Reattached,
    Started,
    StatesTold,
    StepsTaken,
    StoodStill,
    Tick,
    Waited,
    WorkerAttached,
    WorkerLost,
)
from orchestrator.steering.openings import (
    leave_the_overdue,
    lose_verifier,
    on_attached,
    on_capped,
    on_lost,
    on_started,
    on_states,
    on_waited,
    suspend,
    tell_of_the_drafter,
)
from orchestrator.steering.rounds import Ending, SuspendReason
from orchestrator.steering.state import Attached, State, Turn
from orchestrator.steering.storing import on_persisted
from orchestrator.steering.taking import on_steps
from services.contract.types import FinishReason

LOOK_AGAIN = 0.25
"""Seconds until a missing worker is asked for again."""


def step(state: State, event: Event) -> tuple[State, list[Action]]:
    """Absorb one event. Pure; raises nothing for late, doubled or foreign events."""
    turn = Turn(*state, now=event.at)
    match state.phase:
        case Phase.RUNNING:
            _run(turn, event)
            tell_of_the_drafter(turn, state)
        case Phase.NEW:
            _begin(turn, event)
        case Phase.FINISHING:
            _finish(turn, event)
        case Phase.SUSPENDED | Phase.DONE:
            pass
        case _:
            assert_never(state.phase)
    return turn.state(), turn.actions


def _begin(turn: Turn, event: Event) -> None:
    match event:
        case Begin():
            turn.phase, turn.began_at = Phase.RUNNING, turn.now
            turn.verifiers = turn.verifiers._replace(missing_since=turn.now)
            turn.need_workers()
        case Capped():
            on_capped(turn, event)
        case Detached():
            turn.detached_at = turn.now
        case Reattached():
            turn.detached_at = None
        case AbortRequested():
            _abort(turn)
        case _:
            pass


def _run(turn: Turn, event: Event) -> None:
    match event:
        case StepsTaken():
            on_steps(turn, event)
        case Persisted():
            on_persisted(turn, event)
        case Tick():
            _on_tick(turn)
        case Waited():
            on_waited(turn, event)
        case StatesTold():
            on_states(turn, event)
        case WorkerAttached():
            on_attached(turn, event)
        case Started():
            on_started(turn, event)
        case WorkerLost():
            on_lost(turn, event)
        case Capped():
            on_capped(turn, event)
        case StoodStill():
            _on_stood_still(turn, event.seconds)
        case Detached():
            turn.detached_at = turn.now
        case Reattached():
            turn.detached_at = None
        case AbortRequested():
            _abort(turn)
        case Begin():
            pass
        case _:
            assert_never(event)


def _finish(turn: Turn, event: Event) -> None:
    match event:
        case Persisted():
            on_persisted(turn, event)
        case Tick() if turn.now >= turn.began_at + turn.config.limits.deadline:
            suspend(turn, SuspendReason.DEADLINE)
        case StoodStill():
            _on_stood_still(turn, event.seconds)
        case _:
            pass


def _abort(turn: Turn) -> None:
    turn.release_all()
    turn.phase, turn.pending, turn.storing = Phase.DONE, None, None
    turn.actions.append(Finish(Ending(FinishReason.ABORT)))


# --- Time ------------------------------------------------------------------------


def next_wake(state: State, now: float) -> float | None:
    """When the machine wants its next Tick, if nothing else happens before."""
    if state.phase not in (Phase.RUNNING, Phase.FINISHING):
        return None
    limits = state.config.limits
    wake = state.began_at + limits.deadline
    if state.phase is Phase.FINISHING:
        return wake
    if state.detached_at is not None:
        wake = min(wake, state.detached_at + limits.detach_grace)
    if state.silent_at is not None:
        wake = min(wake, state.silent_at)
    for attached in (state.verifier, state.drafter):
        if attached is not None and not attached.opened:
            wake = min(wake, attached.due)
    if state.lacks_worker:
        wake = min(wake, now + LOOK_AGAIN)
    return wake


def _on_tick(turn: Turn) -> None:
    state, limits = turn.state(), turn.config.limits
    missing_since = turn.verifiers.missing_since
    if state.detached_at is not None and turn.now >= state.detached_at + limits.detach_grace:
        suspend(turn, SuspendReason.DETACHED)
    elif turn.now >= state.began_at + limits.deadline:
        suspend(turn, SuspendReason.DEADLINE)
    elif state.verifier is None and turn.now >= missing_since + limits.verifier_wait:
        suspend(turn, SuspendReason.NO_VERIFIER, turn.verifiers.left)
    elif state.silent_at is not None and turn.now >= state.silent_at:
        lose_verifier(turn, "it was silent about the session")
    else:
        leave_the_overdue(turn)


def _on_stood_still(turn: Turn, seconds: float) -> None:
    """Move every deadline back by the time that this process stalled."""
    turn.began_at += seconds
    turn.heard_at += seconds
    turn.storing_since += seconds
    missing_since = turn.verifiers.missing_since + seconds
    turn.verifiers = turn.verifiers._replace(missing_since=missing_since)
    if turn.detached_at is not None:
        turn.detached_at += seconds
    turn.verifier = _later(turn.verifier, seconds)
    turn.drafter = _later(turn.drafter, seconds)


def _later(attached: Attached | None, seconds: float) -> Attached | None:
    return None if attached is None else attached._replace(due=attached.due + seconds)
