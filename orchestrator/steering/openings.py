"""Workers come and go.

1. One worker at a time has a role; what a former one says is dropped, and what is said of an
   earlier opening. A step of a session, as good as a word, says that it has started.
2. A verifier is opened from all that was received, and the session's drafter anew behind it: what
   that had sent is lost with the verifier before, and it sends nothing twice. Where drafts are
   judged by chance (`STANDARD`, `BLOCK`) every earlier draft is void.
3. Without a drafter the verifier decodes alone, and the session asks for another drafter
   after a growing pause. Without a verifier the session waits, and asks for no drafter,
   since the one in the next verifier's process is the nearest. What a verifier drafts by itself
   no drafter is asked for.
4. A worker that started an opening which it was never sent has lost the session.
5. A worker that is full costs no attempt, nor does one that is lost: silent, cut off,
   draining, without a step or an opening in time. After each loss the session waits anew
   for another one. A refusal or a wrong answer costs an attempt, a message that does not add up
   one of each session of its link. A session that fails everywhere is suspended. One that fails for
   good has ended, once all its tokens are emitted.
6. A worker has the time that its queue and pace explain, and `opening_wait`, to open the
   session; then it counts as lost. Each overdue opening in a row doubles the time: where
   every verifier is slow, moving on would only start over.
7. States that a verifier tells as it reads a text go to the drafter that is attached then, behind
   its opening. Without one they are dropped, and so are those of an earlier opening.
8. A verifier is opened with the largest window there is, and told of a smaller one behind that: no
   later one passes its first.
9. A verifier knows at any time whether a drafter has opened the session: without one it waits for
   no draft.
10. Openings and terms are keys of random draws, 16 bits each: a session that needs more openings
    is suspended, and none goes on in a later term.
"""

from __future__ import annotations

from orchestrator.steering.config import Phase
from orchestrator.steering.credit import limit_of
from orchestrator.steering.events import (
    Capped,
    SetDraftedFor,
    SetWindow,
    Start,
    Started,
    StatesTold,
    Suspend,
    TellStates,
    Waited,
    WorkerAttached,
    WorkerLost,
)
from orchestrator.steering.rounds import SuspendReason
from orchestrator.steering.state import (
    MOST_DOUBLINGS,
    Attached,
    State,
    Turn,
    capped,
    methods_of_a_drafter,
)
from orchestrator.steering.storing import store
from services.contract.frames import WaitReason
from services.contract.states import row_count
from services.contract.types import Role
from services.contract.worker_messages import StartDraft, StartVerify

OPENING_FACTOR = 4.0
"""Of the time that a worker's queue and pace explain: neither is known well."""
MOST_OPENINGS = MOST_TERMS = (1 << 16) - 1
_EXCUSES = frozenset(WaitReason) - {WaitReason.CREDIT, WaitReason.ENDED}
"""Why a verifier may be silent. We know what credit it has, and when its output ends."""


def suspend(turn: Turn, reason: SuspendReason, detail: str = "") -> None:
    """Stop before the end; the session can be resumed, unless it ends for good."""
    turn.release_all()
    if reason.for_good and (turn.pending or turn.storing):
        turn.phase, turn.gone = Phase.FINISHING, (reason, detail)
        store(turn)
        return
    # Nobody waits for this to be emitted: it is there for whoever resumes the session.
    store(turn, behind=True)
    turn.phase = Phase.SUSPENDED
    turn.actions.append(Suspend(reason, detail))


# --- Opening ---------------------------------------------------------------------


def on_attached(turn: Turn, event: WorkerAttached) -> None:
    """Placement chose a worker: open the session there."""
    if turn.attached(event.role) is not None:
        return
    wait = turn.config.limits.opening_wait + OPENING_FACTOR * event.ready_s
    if event.role is Role.VERIFIER:
        wait *= 2 ** min(turn.verifiers.overdue, MOST_DOUBLINGS)
        _open_verifier(turn, event, turn.now + wait)
    else:
        _open_drafter(turn, event.worker, turn.now + wait)


def _open_verifier(turn: Turn, event: WorkerAttached, due: float) -> None:
    opening = turn.verifiers.openings + 1
    if opening > MOST_OPENINGS:
        suspend(turn, SuspendReason.REFUSED, "it was opened too often")
        return
    local = ",".join([method for method in turn.config.methods if method in event.local])
    turn.verifiers = turn.verifiers._replace(openings=opening)
    turn.verifier = Attached(event.worker, opening, due, method=local)
    turn.limit = limit_of(turn)
    turn.actions.append(Start(Role.VERIFIER, event.worker, _start_verify(turn, turn.verifier)))
    most = turn.config.largest_block
    if (window := capped(most, turn.cap)) < most:
        turn.actions.append(SetWindow(event.worker, window))
    if turn.drafter is not None:
        _open_anew(turn, turn.drafter)
    turn.need_workers()


def _open_anew(turn: Turn, drafter: Attached) -> None:
    """Open the drafter that is there behind a new verifier, if that needs it."""
    if drafter.method == methods_of_a_drafter(turn.config, turn.verifier):
        _open_drafter(turn, drafter.worker, turn.now + turn.config.limits.opening_wait)
    if turn.drafter is drafter:
        turn.release(Role.DRAFTER)


def _open_drafter(turn: Turn, worker: str, due: float) -> None:
    opening = turn.drafters.openings + 1
    method = methods_of_a_drafter(turn.config, turn.verifier)
    if opening > MOST_OPENINGS or not method:
        return
    turn.drafters = turn.drafters._replace(openings=opening)
    turn.drafter = Attached(worker, opening, due, method=method)
    turn.actions.append(Start(Role.DRAFTER, worker, _start_draft(turn, turn.drafter)))


def _start_verify(turn: Turn, verifier: Attached) -> StartVerify:
    config = turn.config
    return StartVerify(
        turn.handle,
        verifier.opening,
        config.session,
        config.term,
        config.prompt,
        turn.committed,
        turn.limit,
        config.mode,
        config.sampling,
        config.seed,
        config.largest_block,
        depth=config.window,
        method=verifier.method,
        first_drafts=turn.drafters.first,
        cache_scope=config.cache_scope,
        fork_scope=config.fork_scope,
        phrase_scope=config.phrase_scope,
        top_rows=config.top_rows,
        state_layers=config.states.layers,
        priority=config.priority,
        num_candidates=config.num_candidates,
        pacing=config.pacing,
    )


def _start_draft(turn: Turn, drafter: Attached) -> StartDraft:
    config = turn.config
    return StartDraft(
        turn.handle,
        drafter.opening,
        config.session,
        config.term,
        config.prompt,
        turn.committed,
        config.mode,
        config.sampling,
        config.seed,
        capped(config.window, turn.cap),
        num_candidates=config.num_candidates,
        method=drafter.method,
        vocab_size=config.vocab_size,
        phrase_scope=config.phrase_scope,
        top_rows=config.top_rows,
        fork_scope=config.fork_scope,
        synchronous=config.synchronous,
    )


def on_started(turn: Turn, event: Started) -> None:
    """The worker has read the text."""
    attached = turn.attached(event.role)
    if attached is None or attached.worker != event.worker:
        return
    if attached.opening != event.opening:
        _started_otherwise(turn, event, attached)
    elif event.role is Role.DRAFTER:
        turn.drafter = attached._replace(opened=True)
    else:  # A step may have come before.
        turn.cached_tokens = min(event.cached_tokens, len(turn.config.prompt))
        if not attached.opened:
            has_started(turn, attached)


def has_started(turn: Turn, verifier: Attached) -> None:
    """The verifier has the session, whatever said so."""
    turn.verifier = verifier._replace(opened=True)
    turn.verifiers = turn.verifiers._replace(overdue=0)
    turn.heard_at = turn.now


def _started_otherwise(turn: Turn, event: Started, attached: Attached) -> None:
    """Ignore a late answer to an earlier opening; lose a worker that was never asked."""
    if event.opening > attached.opening:
        reason = "it opened what nobody asked for"
        opening = attached.opening
        on_lost(turn, WorkerLost(event.at, event.role, event.worker, reason, opening=opening))


def has_opened(attached: Attached | None) -> bool:
    """Whether there is a worker, and it has the session."""
    return attached is not None and attached.opened


def tell_of_the_drafter(turn: Turn, before: State) -> None:
    """Let the verifier know of a drafter that has come or gone; its opening says of none."""
    verifier, known = turn.verifier, before.verifier
    if verifier is None or known is None or verifier.opening != known.opening:
        return
    if (drafted_for := has_opened(turn.drafter)) != has_opened(before.drafter):
        turn.actions.append(SetDraftedFor(verifier.worker, drafted_for))


# --- While it is open ------------------------------------------------------------


def on_states(turn: Turn, event: StatesTold) -> None:
    """Pass the states of a text on, in the opening that the drafter knows."""
    verifier, drafter, told = turn.verifier, turn.drafter, event.states
    if verifier is None or drafter is None:
        return
    if (verifier.worker, verifier.opening) != (event.worker, told.opening):
        return
    rows = row_count(told.states, turn.config.states.width)
    if rows and told.position + rows <= len(turn.config.prompt) + len(turn.committed):
        states = told._replace(handle=turn.handle, opening=drafter.opening)
        turn.actions.append(TellStates(drafter.worker, states))


def on_waited(turn: Turn, event: Waited) -> None:
    """A verifier that says why the session takes no part in steps is not silent."""
    verifier = turn.verifier
    if verifier is not None and verifier.worker == event.worker and event.reason in _EXCUSES:
        turn.heard_at = turn.now


def on_capped(turn: Turn, event: Capped) -> None:
    """The load allows another window.

    Not for sampled trees, of which those that have a place in them would be drawn anew.
    """
    config, before = turn.config, turn.cap
    if not config.mode.exact_match and config.num_candidates > 1:
        return
    turn.cap = event.window
    for attached, most in ((turn.verifier, config.largest_block), (turn.drafter, config.window)):
        window = capped(most, turn.cap)
        if attached is not None and window != capped(most, before):
            turn.actions.append(SetWindow(attached.worker, window))


# --- Losing ----------------------------------------------------------------------


def on_lost(turn: Turn, event: WorkerLost) -> None:
    """The worker died, stalled, drains, or gave the session up."""
    attached = turn.attached(event.role)
    if attached is None or attached.worker != event.worker:
        return
    if event.opening is not None and event.opening < attached.opening:
        return
    if event.role is Role.VERIFIER:
        _lose_or_wait(turn, event)
    else:
        lose_drafter(turn, lost=event.opening is None)
        if event.fatal:
            attempts = turn.config.limits.worker_attempts
            turn.drafters = turn.drafters._replace(failures=attempts)
        turn.need_workers()


def _lose_or_wait(turn: Turn, event: WorkerLost) -> None:
    if event.for_good:
        why = SuspendReason.COSTLY if event.costly else SuspendReason.IMPOSSIBLE
        suspend(turn, why, event.reason)
    elif event.busy:
        left = f"the last one is full: {event.reason}"
        turn.verifiers = turn.verifiers._replace(left=left)
        _abandon_verifier(turn)
    elif event.opening is None:
        lose_verifier(turn, event.reason)
    else:
        refuse_verifier(turn, event.reason, fatal=event.fatal)


def lose_verifier(turn: Turn, reason: str) -> None:
    """Abandon a lost verifier; another one starts from all that was received."""
    losses = turn.verifiers.losses + 1
    times = "" if losses == 1 else f"{losses} were lost, "
    turn.verifiers = turn.verifiers._replace(
        losses=losses, missing_since=turn.now, left=f"{times}the last one: {reason}"
    )
    _abandon_verifier(turn)
    turn.need_workers()


def refuse_verifier(turn: Turn, reason: str, *, fatal: bool = False) -> None:
    """Abandon a verifier that refused the session or answered wrongly."""
    failures = turn.verifiers.failures + 1
    if turn.verifier is not None and turn.verifier.opened:
        turn.verifiers = turn.verifiers._replace(missing_since=turn.now)
    turn.verifiers = turn.verifiers._replace(failures=failures, left=f"the last one: {reason}")
    _abandon_verifier(turn)
    if fatal or failures >= turn.config.limits.worker_attempts:
        times = "" if failures == 1 else f"{failures} times, at last: "
        suspend(turn, SuspendReason.REFUSED, f"{times}{reason}")
        return
    turn.need_workers()


def _abandon_verifier(turn: Turn) -> None:
    turn.release(Role.VERIFIER)
    if not turn.config.mode.exact_match:
        # No draft so far is judged any more.
        turn.drafters = turn.drafters._replace(first=turn.drafters.openings + 1)


def lose_drafter(turn: Turn, *, lost: bool = False) -> None:
    """Go on without a drafter, and look for another one later.

    `lost`: it is gone, which is no refusal and costs no attempt.
    """
    turn.release(Role.DRAFTER)
    drafters = turn.drafters
    doublings = min(drafters.failures + drafters.losses, MOST_DOUBLINGS)
    turn.drafters = drafters._replace(
        failures=drafters.failures + (not lost),
        losses=drafters.losses + lost,
        not_before=turn.now + turn.config.limits.drafter_backoff * 2**doublings,
    )


def leave_the_overdue(turn: Turn) -> None:
    """Leave workers whose opening is overdue, and ask for missing ones."""
    if turn.drafter is not None and turn.drafter.overdue(turn.now):
        lose_drafter(turn, lost=True)
    if turn.verifier is not None and turn.verifier.overdue(turn.now):
        turn.verifiers = turn.verifiers._replace(overdue=turn.verifiers.overdue + 1)
        lose_verifier(turn, "it did not open the session in time")
    else:
        turn.need_workers()
