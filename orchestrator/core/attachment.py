"""Workers come and go.

1. One worker at a time has a role; messages of a former one are dropped.
2. Losing a worker bumps the epoch: earlier drafts are void.
3. Without a drafter the verifier decodes alone, and the session asks for another drafter
   after a growing pause. Without a verifier the session waits, and asks for no drafter,
   since the one in the next verifier's process is the nearest.
4. A worker that opened the session in an epoch it was never sent has lost the session.
5. A worker that is full costs no attempt, nor does one that is lost: silent, cut off,
   draining, without a verdict or an opening in time. After each loss the session waits anew
   for another one. A refusal or a wrong answer costs an attempt, and a session that fails
   everywhere is suspended. One that fails for good has ended, once all its tokens are emitted.
6. A worker has the time that its queue and pace explain, and `opening_wait`, to open the
   session; then it counts as lost. Each overdue opening in a row doubles the time: where
   every verifier is slow, moving on would only start over.
7. States that a verifier tells as it reads a text go to the drafter that is attached then, behind
   its opening. Without one they are dropped, and so are those of an earlier opening.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import (
    OpenOnWorker,
    SendToDrafter,
    StatesArrived,
    Suspend,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.sending import send_at_opening
from orchestrator.core.state import Attached, State
from orchestrator.core.turn import MOST_DOUBLINGS, Turn
from orchestrator.steering.config import Phase
from orchestrator.steering.rounds import SuspendReason
from services.contract.states import row_count
from services.contract.types import DraftStates, OpenDraft, OpenVerify, Role

OPENING_FACTOR = 4.0
"""Of the time that a worker's queue and pace explain: neither is known well."""


def suspend(turn: Turn, reason: SuspendReason, detail: str = "") -> None:
    """Stop before the end; the session can be resumed, unless it ends for good."""
    turn.release_all()
    turn.bump_epoch()
    if reason is SuspendReason.IMPOSSIBLE and turn.state.unpersisted:
        turn.set(phase=Phase.FINISHING, verifier_left=detail)
        return
    turn.set(phase=Phase.SUSPENDED)
    turn.do(Suspend(reason, detail))


def on_attached(turn: Turn, event: WorkerAttached) -> None:
    """Placement chose a worker: open the session there."""
    state = turn.state
    taken = state.verifier if event.role is Role.VERIFIER else state.drafter
    if state.phase is not Phase.RUNNING or taken is not None:
        return
    wait = state.config.limits.opening_wait + OPENING_FACTOR * event.ready_s
    if event.role is Role.VERIFIER:
        wait *= 2 ** min(state.verifier_overdue, MOST_DOUBLINGS)
    attached = Attached(event.worker, state.epoch, due=turn.now + wait, beside=event.beside)
    turn.set(**{event.role.value: attached})
    if event.role is Role.VERIFIER:
        turn.set(refuses_behind=False)
        turn.do(OpenOnWorker(event.worker, _open_verify(turn.state)))
        send_at_opening(turn)
        turn.need_workers()
    else:
        told = len(state.committed)
        turn.set(credit=state.window, drafter_final=False, told=told)
        turn.set(untold_rounds=0, untold_states=())
        turn.do(OpenOnWorker(event.worker, _open_draft(turn.state)))


def _open_verify(state: State) -> OpenVerify:
    config = state.config
    return OpenVerify(
        config.session,
        config.term,
        state.epoch,
        config.prompt,
        state.committed,
        config.mode,
        config.sampling,
        config.seed,
        config.largest_block,
        cache_scope=config.cache_scope,
        top_rows=config.top_rows,
        state_layers=config.states.layers,
        fork_scope=config.fork_scope,
        priority=config.priority,
    )


def _open_draft(state: State) -> OpenDraft:
    config = state.config
    return OpenDraft(
        config.session,
        state.epoch,
        config.prompt,
        state.committed,
        config.mode,
        config.sampling,
        config.seed,
        state.credit,
        num_candidates=config.num_candidates,
        method=config.method,
        vocab_size=config.vocab_size,
        phrase_scope=config.phrase_scope,
        synchronous=config.synchronous,
        top_rows=config.top_rows,
        fork_scope=config.fork_scope,
    )


def on_opened(turn: Turn, event: WorkerOpened) -> None:
    """The worker has prefilled the session."""
    state = turn.state
    attached = state.verifier if event.role is Role.VERIFIER else state.drafter
    if attached is None or attached.opened or attached.worker != event.worker:
        return
    if attached.epoch != event.epoch:
        _opened_otherwise(turn, event, attached)
        return
    turn.set(**{event.role.value: replace(attached, opened=True)})
    if event.role is Role.VERIFIER:
        cached = min(event.cached_tokens, len(turn.state.config.prompt))
        # The first block waited for this.
        blocks = tuple([block._replace(sent_at=turn.now) for block in turn.state.in_flight])
        turn.set(idle_since=turn.now, in_flight=blocks, cached_tokens=cached, verifier_overdue=0)


def _opened_otherwise(turn: Turn, event: WorkerOpened, attached: Attached) -> None:
    """Ignore a late answer to an earlier open; lose a worker that was never asked."""
    if event.epoch > attached.epoch:
        reason = "it opened what nobody asked for"
        epoch = attached.epoch
        on_lost(turn, WorkerLost(event.at, event.role, event.worker, reason, epoch=epoch))


def on_states(turn: Turn, event: StatesArrived) -> None:
    """Pass the states of a text on, which the drafter knows by the epoch that is now."""
    state, (_, epoch, position, states) = turn.state, event.states
    verifier, drafter, config = state.verifier, state.drafter, state.config
    if state.phase is not Phase.RUNNING or verifier is None or drafter is None:
        return
    if (verifier.worker, verifier.epoch) != (event.worker, epoch):
        return
    rows = row_count(states, config.states.width)
    if rows and position + rows <= len(config.prompt) + len(state.committed):
        message = DraftStates(config.session, state.epoch, position, states)
        turn.do(SendToDrafter(drafter.worker, message))


def on_lost(turn: Turn, event: WorkerLost) -> None:
    """The worker died, stalled, drains, or gave the session up."""
    state = turn.state
    attached = state.verifier if event.role is Role.VERIFIER else state.drafter
    if state.phase is not Phase.RUNNING or attached is None or attached.worker != event.worker:
        return
    if event.epoch is not None and event.epoch < attached.epoch:
        return
    if event.role is Role.VERIFIER:
        _lose_or_wait(turn, event)
    else:
        turn.lose_drafter(lost=event.epoch is None)
        if event.fatal:
            turn.set(drafter_failures=state.config.limits.worker_attempts)
        turn.need_workers()


def _lose_or_wait(turn: Turn, event: WorkerLost) -> None:
    if event.for_good:
        why = SuspendReason.COSTLY if event.costly else SuspendReason.IMPOSSIBLE
        suspend(turn, why, event.reason)
    elif event.busy:
        turn.set(verifier_left=f"the last one is full: {event.reason}")
        _abandon_verifier(turn)
        turn.resync_drafter()
    elif event.epoch is None:
        lose_verifier(turn, event.reason)
    else:
        refuse_verifier(turn, event.reason, fatal=event.fatal)


def lose_verifier(turn: Turn, reason: str) -> None:
    """Abandon a lost verifier; another one starts from the committed text."""
    losses = turn.state.verifier_losses + 1
    times = "" if losses == 1 else f"{losses} were lost, "
    turn.set(
        verifier_losses=losses,
        verifier_missing_since=turn.now,
        verifier_left=f"{times}the last one: {reason}",
    )
    _abandon_verifier(turn)
    turn.resync_drafter()
    turn.need_workers()


def refuse_verifier(turn: Turn, reason: str, *, fatal: bool = False) -> None:
    """Abandon a verifier that refused the session or answered wrongly."""
    state = turn.state
    failures = state.verifier_failures + 1
    if state.verifier is not None and state.verifier.opened:
        turn.set(verifier_missing_since=turn.now)
    turn.set(verifier_failures=failures, verifier_left=f"the last one: {reason}")
    _abandon_verifier(turn)
    if fatal or failures >= state.config.limits.worker_attempts:
        times = "" if failures == 1 else f"{failures} times, at last: "
        suspend(turn, SuspendReason.REFUSED, f"{times}{reason}")
        return
    turn.resync_drafter()
    turn.need_workers()


def _abandon_verifier(turn: Turn) -> None:
    turn.release(Role.VERIFIER)
    turn.set(in_flight=(), early=(), wait_until=None)


def leave_the_overdue(turn: Turn) -> None:
    """Leave workers whose opening is overdue, and ask for missing ones."""
    state = turn.state
    if state.drafter is not None and state.drafter.overdue(turn.now):
        turn.lose_drafter(lost=True)
    if state.verifier is not None and state.verifier.overdue(turn.now):
        turn.set(verifier_overdue=state.verifier_overdue + 1)
        lose_verifier(turn, "it did not open the session in time")
    else:
        turn.need_workers()
