"""Workers come and go.

1. A role is taken by one worker at a time; what a former one still says is dropped.
2. Losing a worker bumps the epoch: nothing drafted before counts afterwards.
3. Without a drafter the verifier decodes alone, and another drafter is asked for
   after a growing pause. Without a verifier the session waits.
4. A worker that says it opened the session in an epoch it was never told of has lost it.
5. A worker that is merely full costs no attempt; one that fails does, and a
   session that fails everywhere is suspended. What fails for good has ended.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.events import (
    OpenOnWorker,
    Suspend,
    SuspendReason,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.state import Attached, Phase, State
from orchestrator.core.turn import Turn
from services.common.types import OpenDraft, OpenVerify, Role


def suspend(turn: Turn, reason: SuspendReason, detail: str = "") -> None:
    """Stop before the end; but for what is IMPOSSIBLE, the session can be resumed."""
    turn.release_all()
    turn.bump_epoch()
    turn.set(phase=Phase.SUSPENDED)
    turn.do(Suspend(reason, detail))


def on_attached(turn: Turn, event: WorkerAttached) -> None:
    """Placement chose a worker: open the session there."""
    state = turn.state
    taken = state.verifier if event.role is Role.VERIFIER else state.drafter
    if state.phase is not Phase.RUNNING or taken is not None:
        return
    turn.set(**{event.role.value: Attached(event.worker, state.epoch)})
    if event.role is Role.VERIFIER:
        turn.do(OpenOnWorker(event.worker, _open_verify(turn.state)))
    else:
        turn.set(credit=turn.state.window, drafter_final=False)
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
        turn.set(idle_since=turn.now, cached_tokens=cached)


def _opened_otherwise(turn: Turn, event: WorkerOpened, attached: Attached) -> None:
    """Of an earlier open it is only late; of one that never was, the worker is wrong."""
    if event.epoch > attached.epoch:
        reason = "it opened what nobody asked for"
        on_lost(turn, WorkerLost(event.at, event.role, event.worker, reason))


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
        turn.lose_drafter()
        if event.fatal:
            turn.set(drafter_failures=state.config.limits.worker_attempts)
        turn.need_workers()


def _lose_or_wait(turn: Turn, event: WorkerLost) -> None:
    if event.for_good:
        suspend(turn, SuspendReason.IMPOSSIBLE, event.reason)
    elif event.busy:
        turn.release(Role.VERIFIER)
    else:
        lose_verifier(turn, event.reason, fatal=event.fatal)


def lose_verifier(turn: Turn, reason: str, *, fatal: bool = False) -> None:
    """Abandon the verifier, for good; another one starts from the committed text."""
    state = turn.state
    failures = state.verifier_failures + 1
    if state.verifier is not None and state.verifier.opened:
        turn.set(verifier_missing_since=turn.now)
    turn.release(Role.VERIFIER)
    turn.set(in_flight=(), early=(), verifier_failures=failures, wait_until=None)
    if fatal or failures >= turn.state.config.limits.worker_attempts:
        suspend(turn, SuspendReason.REFUSED, reason)
        return
    turn.resync_drafter()
    turn.need_workers()
