"""Drives one steered session: feeds events to its machine and performs its actions.

    took(steps) → step → store … stored → step → emit, grant

Nothing here awaits between reading and replacing the state. Results that take time
(the store, a worker, a timer) come back as events.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, assert_never

from orchestrator.session.logprobs import pack_row
from orchestrator.session.output import LOGPROBS_KEPT, Beyond, Delivery, Output
from orchestrator.session.placing import Placing
from orchestrator.session.ports import NewSession, SessionKeeper, SessionKey, Workers
from orchestrator.session.record_size import FORGOTTEN
from orchestrator.session.session_writer import RecordWriter
from orchestrator.session.spec import SessionSpec
from orchestrator.session.stored_text import end_of, stopped
from orchestrator.session.totals import SpecTotals
from orchestrator.session.waiting_line import WaitingLine
from orchestrator.steering import machine
from orchestrator.steering.config import Phase
from orchestrator.steering.events import (
    AbortRequested,
    Action,
    Begin,
    Capped,
    Detached,
    Emit,
    Event,
    Finish,
    Grant,
    NeedWorker,
    Persist,
    Persisted,
    Reattached,
    Release,
    SetDraftedFor,
    SetWindow,
    Start,
    Started,
    StatesTold,
    StepsTaken,
    StoodStill,
    Suspend,
    TellStates,
    Tick,
    Waited,
    WorkerAttached,
    WorkerLost,
)
from orchestrator.steering.logprobs import new_rows, rows_fit
from orchestrator.steering.ports import Hub, Said, Taken
from orchestrator.steering.rounds import Commit, Ending, GivenUp, SuspendReason
from orchestrator.steering.state import State
from orchestrator.text import TextStream
from services.contract.errors import PacelineError, SessionAborted
from services.contract.frames import WaitReason
from services.contract.types import FailureReason, FinishReason, Role, local_methods
from services.contract.worker_messages import (
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    StartVerify,
    TextStates,
)
from services.contract.worker_messages import SetDraftedFor as DraftedForMessage
from services.contract.worker_messages import SetWindow as WindowMessage


class Recorder(Protocol):
    """Telemetry's one seam: it sees every event with the actions it led to."""

    def on_turn(
        self, session: str, event: Event, actions: Sequence[Action], before: State, after: State
    ) -> None:
        """Called after each step, before its actions are performed."""
        ...

    def traceparent(self, session: str) -> str:
        """W3C trace context of the session's span; empty when nothing is traced."""
        ...


class Driver:
    """One live session. All methods belong to the event loop."""

    def __init__(
        self,
        key: SessionKey,
        spec: SessionSpec,
        state: State,
        text: TextStream,
        stored: NewSession,
        *,
        hub: Hub,
        workers: Workers,
        store: SessionKeeper,
        recorder: Recorder,
        on_end: Callable[[Driver], None],
        beyond: Beyond = Beyond.NOT_YET,
        logprobs_kept: int = LOGPROBS_KEPT,
        company: Callable[[], Collection[str]] = tuple,
        line: WaitingLine | None = None,
        clock: Callable[[], float] = time.monotonic,
        home: str = "",
    ) -> None:
        """`text` has taken `state.committed`, which is stored already.

        `beyond`: the answer to a reader that is ahead and sends no hash. `company`: the verifiers
        of the other completions of its request. `line`: who else waits for a verifier. `clock`: of
        every event, in seconds. `home`: the verifier that another orchestrator had it with.
        """
        self.key, self.now = key, clock
        self.name = state.config.session
        self.spec = spec
        self._hub = hub
        self._handle = hub.enter(self, state.config.vocab_size)
        self.state = state._replace(handle=self._handle)
        proven = Beyond.AGAIN if spec.mode.exact_match else Beyond.LOST
        # Who owned it before told what was asked of the prompt, if anything is committed.
        scored = spec.sampling.prompt_logprobs is not None and not state.committed
        prompt_due = len(spec.prompt) - 1 if scored else 0
        self.output = Output(beyond, proven, logprobs_kept, prompt_due)
        self.totals = SpecTotals()
        self.given_up: GivenUp | None = None
        """Why it has ended, where it can never go on."""
        self._text = text
        # Of the commit that is on its way to the store.
        self._pieces: tuple[str, ...] = ()
        self._recorder, self._on_end = recorder, on_end
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Event] = deque()
        self._draining = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        line, fingerprint = line or WaitingLine(), stored.target_fingerprint
        self._placing = Placing(key, state.config, workers, line, company, fingerprint, home)
        self._record = RecordWriter(
            key,
            state.config.term,
            stored,
            state.committed,
            store,
            on_persisted=lambda index: hub.soon(partial(self._stored, index)),
            on_refused=self._on_refused,
        )
        self.output.put_all(state.committed, text.pieces())

    @property
    def stored_size(self) -> int:
        """About how many bytes of the store it takes; what is ephemeral is gone at its end."""
        over = self.output.ending is not None
        return FORGOTTEN if over and self.spec.ephemeral else self._record.size

    # --- events in --------------------------------------------------------------------

    def begin(self) -> None:
        """The session exists in the store under this owner; work may start."""
        self.feed(Begin(self.now()))

    def _stored(self, index: int) -> None:
        self.feed(Persisted(self.now(), index))

    def abort(self) -> None:
        """End the session at once."""
        self.feed(AbortRequested(self.now()))

    def wake(self) -> None:
        """Look at the time, and for workers that are missing."""
        self._know_all()
        self.feed(Tick(self.now()))

    def cap(self, window: int) -> None:
        """The load allows so many draft tokens from now on."""
        self.feed(Capped(self.now(), window))

    def stood_still(self, seconds: float) -> None:
        """This process stalled, which the session does not count."""
        self.feed(StoodStill(self.now(), seconds))

    def detached(self) -> None:
        """Nobody reads any more."""
        self.feed(Detached(self.now()))

    def reattached(self) -> None:
        """Somebody reads again."""
        self.feed(Reattached(self.now()))

    def lost(self, worker: str, role: Role, reason: str) -> None:
        """A worker is gone, and the session with it."""
        self.feed(WorkerLost(self.now(), role, worker, reason))

    def took(self, worker: str, taken: Sequence[Taken]) -> None:
        """Steps that its verifier took, in order."""
        if self.output.prompt_missing:
            self._refuse(worker, taken[0].row.opening, "it left tokens of the prompt out")
        lag_s = self._hub.interval + 2 * self._hub.hop
        self.feed(StepsTaken(self.now(), worker, tuple(taken), lag_s))

    def hear(self, worker: str, role: Role, event: Said) -> None:
        """Absorb what a worker says."""
        now = self.now()
        match event:
            case SessionStarted(_, opening, cached):
                if role is Role.VERIFIER and self.output.prompt_missing:
                    self._refuse(worker, opening, "it left tokens of the prompt out")
                self.feed(Started(now, role, worker, opening, cached))
            case SessionGone():
                self.feed(_lost(now, role, worker, event))
            case WaitReason():
                self.feed(Waited(now, worker, event))
            case TextStates():
                self.feed(StatesTold(now, worker, event))
            case PromptScores():
                self._take_scores(worker, event)
            case _:
                assert_never(event)

    def _take_scores(self, worker: str, scores: PromptScores) -> None:
        """Keep what is new of what the session's verifier says of the prompt."""
        attached = self.state.verifier
        if attached is None or (attached.worker, attached.opening) != (worker, scores.opening):
            return
        output, config = self.output, self.state.config
        asked, known = config.sampling.prompt_logprobs or 0, output.prompt_known + 1
        new = new_rows(scores.rows, scores.position, known, output.prompt_missing)
        if new is None or not rows_fit(new, asked, config.vocab_size):
            self._refuse(worker, scores.opening, "what it said of the prompt cannot be")
        elif new:
            output.put_prompt(tuple(map(pack_row, new)))

    def _refuse(self, worker: str, opening: int, reason: str) -> None:
        self.feed(WorkerLost(self.now(), Role.VERIFIER, worker, reason, opening=opening))

    def feed(self, event: Event) -> None:
        """Absorb an event, and the events that its actions cause."""
        self._inbox.append(event)
        if self._draining:
            return
        self._draining = True
        try:
            while self._inbox:
                self._turn(self._inbox.popleft())
        finally:
            self._draining = False
        self._set_timer()

    def _turn(self, event: Event) -> None:
        before = self.state
        self.state, actions = machine.step(before, event)
        self._recorder.on_turn(self.name, event, actions, before, self.state)
        for action in actions:
            self._perform(action)

    def fail(self, error: PacelineError) -> None:
        """End the stream with an error; the stored session does not change."""
        self._stop(error=error)

    def hand_over(self, error: PacelineError) -> asyncio.Future[object]:
        """Release the session to whoever resumes it; done when that is stored.

        The write follows every commit. What was not committed yet was not emitted, either.
        """
        paused = self._record.pause()
        self.fail(error)
        return paused

    def _stop(self, ending: Ending | None = None, error: PacelineError | None = None) -> None:
        """Leave the session as it is stored, and free what it holds here."""
        if not self.output.ended:
            self.output.end(ending, error)
            self.abort()
            self._record.let_go()
            self._close()

    def _set_timer(self) -> None:
        now = self.now()
        wake = machine.next_wake(self.state, now)
        if self._timer is not None:
            if wake is not None and self._timer_at <= wake:
                return
            self._timer.cancel()
            self._timer = None
        if wake is not None:
            self._timer_at = wake
            self._timer = self._loop.call_later(max(0.0, wake - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.wake()

    def _know_all(self) -> None:
        """Before it may be opened anywhere: take the steps that were held back to be joined."""
        if self.state.phase is Phase.RUNNING:
            self._hub.flush(self._handle)

    # --- actions out ------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case Persist(commit):
                finished = commit.ending is not None
                self._pieces = tuple(self._text.append(commit.token_ids, finished=finished))
                self._record.persist(commit)
            case Emit(commit):
                self._emit(commit)
            case Grant(limit):
                self._hub.grant(self._handle, limit)
            case Start():
                self._start(action)
            case SetWindow(worker, window):
                self._hub.send(worker, WindowMessage(self._handle, window))
            case SetDraftedFor(worker, drafted_for):
                self._hub.send(worker, DraftedForMessage(self._handle, drafted_for))
            case TellStates(worker, states):
                self._hub.send(worker, states)
            case Release(role, worker):
                self._release(role, worker)
            case NeedWorker(role):
                self._place(role)
            case Finish(ending):
                self.output.end(ending)
                self._record.let_go()
                self._close()
            case Suspend(reason, detail):
                self._suspend(reason, detail)
            case _:
                assert_never(action)

    def _start(self, start: Start) -> None:
        message = replace(start.message, traceparent=self._recorder.traceparent(self.name))
        if isinstance(message, StartVerify):
            self._hub.verified_by(
                self._handle,
                start.worker,
                message.opening,
                len(message.output),
                message.limit,
                message.window,
            )
        else:
            self._hub.drafted_by(self._handle, start.worker)
        self._hub.send(start.worker, message)

    def _release(self, role: Role, worker: str) -> None:
        state = self.state
        waits = state.verifiers.missing_since if state.phase is Phase.RUNNING else None
        self._placing.released(role, worker, waits)
        if role is Role.VERIFIER:
            self._hub.verified_by(self._handle, None)
        else:
            self._hub.drafted_by(self._handle, None)
        self._hub.send(worker, EndSession(self._handle))

    def _place(self, role: Role) -> None:
        state = self.state
        local: tuple[str, ...] = ()
        if role is Role.VERIFIER:
            since = state.verifiers.missing_since
            found = self._placing.verifier(state.committed, state.next_tokens, since)
            if found is not None:
                local = local_methods(found.worker.capabilities)
        else:
            near = state.verifier.worker if state.verifier else ""
            config = replace(state.config, method=state.drafters_method)
            found = self._placing.drafter(state.committed, near, config)
        if found is not None:
            self._know_all()
            name, ready_s = found.worker.worker_id, found.ready_s
            self.feed(WorkerAttached(self.now(), role, name, ready_s, local))

    def _on_refused(self, error: PacelineError) -> None:
        if isinstance(error, SessionAborted):
            self._stop(Ending(FinishReason.ABORT))
        else:
            self.fail(error)

    def _emit(self, commit: Commit) -> None:
        for record in commit.records:
            self.totals.add(record)
        told = self.spec.include_rounds
        self.output.put(
            Delivery(
                commit.base_len,
                commit.token_ids,
                self._pieces,
                tuple(map(pack_row, commit.logprobs)),
                commit.origins if told else (),
                commit.records if told else (),
            )
        )

    def _suspend(self, reason: SuspendReason, detail: str) -> None:
        if reason.for_good:
            self.given_up = GivenUp(detail, costly=reason is SuspendReason.COSTLY)
            self._record.give_up(self.given_up)
            self.output.end(error=end_of(self.given_up))
        else:
            self._record.pause()
            self.output.end(error=stopped(reason, detail))
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed:
            self._closed = True
            self._placing.leave()
            self._hub.leave(self._handle)
            self._on_end(self)


def _lost(at: float, role: Role, worker: str, gone: SessionGone) -> WorkerLost:
    """What it means that a worker gave the session up."""
    reason = gone.reason
    fatal = reason in (FailureReason.INVALID, FailureReason.UNSUPPORTED) or reason.for_good
    return WorkerLost(
        *(at, role, worker, gone.message or reason.name),
        fatal=fatal,
        busy=reason is FailureReason.CAPACITY,
        opening=gone.opening,
        for_good=reason.for_good,
        costly=reason is FailureReason.FORMAT_COST,
    )
