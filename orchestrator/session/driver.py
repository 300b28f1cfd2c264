"""Drives one session: feeds events to the round machine and performs its actions.

    feed(event) → step → send to workers → record, store, emit

Nothing here awaits between reading and replacing the state. Results that take time
(the store, a worker, a timer) come back as events.

Workers come first: after a turn that sent them something, the rest waits for the next
turn of the loop, behind the links, and at most until the session's next event. Each half
keeps the machine's order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from orchestrator.core import rounds
from orchestrator.core.events import (
    AbortRequested,
    Action,
    Begin,
    Capped,
    Detached,
    Discarded,
    Emit,
    Event,
    Finish,
    NeedWorker,
    OpenOnWorker,
    Persist,
    Persisted,
    Reattached,
    Release,
    SendToDrafter,
    SendVerify,
    StoodStill,
    Suspend,
    Tick,
    WorkerAttached,
    WorkerLost,
)
from orchestrator.core.state import State
from orchestrator.session.logprobs import pack_row
from orchestrator.session.output import LOGPROBS_KEPT, Beyond, Delivery, Output
from orchestrator.session.placing import Placing
from orchestrator.session.ports import GivenUp, NewSession, SessionKeeper, SessionKey
from orchestrator.session.ports import Workers as Placed
from orchestrator.session.prompt_scores import put_scores
from orchestrator.session.record_size import FORGOTTEN
from orchestrator.session.session_writer import RecordWriter
from orchestrator.session.spec import SessionSpec
from orchestrator.session.stored_text import end_of, stopped
from orchestrator.session.totals import SpecTotals
from orchestrator.session.waiting_line import WaitingLine
from orchestrator.steering.config import Phase
from orchestrator.steering.rounds import Commit, Ending, SuspendReason
from orchestrator.text import TextStream
from orchestrator.workers.events import to_core
from orchestrator.workers.link import SessionEvent
from services.contract.errors import (
    PacelineError,
    SessionAborted,
)
from services.contract.types import (
    DrafterCommand,
    FinishReason,
    PromptScores,
    Role,
    VerifierCommand,
    VerifyOpened,
)


class Workers(Placed, Protocol):
    """The links to workers."""

    def hands_over(self, drafter: str, verifier: str) -> bool:
        """Whether the verifier shares the drafter's process and can take its trees by itself."""
        ...

    def send(self, worker: str, session: str, command: DrafterCommand | VerifierCommand) -> None:
        """Send a command for a session; swallowed by a worker that is gone."""
        ...

    def release(self, worker: str, session: str) -> None:
        """Close the session on the worker."""
        ...


class Recorder(Protocol):
    """Telemetry's one seam: it sees every event with the actions it led to."""

    def on_step(self, session: str, event: Event, actions: Sequence[Action], state: State) -> None:
        """Called after each step, once workers were told, before anything is stored."""
        ...

    def traceparent(self, session: str) -> str:
        """W3C trace context of the session's span; empty when nothing is traced."""
        ...

    def round_traceparent(self, session: str, round: int) -> str:
        """W3C trace context for a round that is about to leave; empty: that of the opening."""
        ...


class SessionDriver:
    """One live session. All methods belong to the event loop."""

    def __init__(
        self,
        key: SessionKey,
        spec: SessionSpec,
        state: State,
        text: TextStream,
        stored: NewSession,
        *,
        workers: Workers,
        store: SessionKeeper,
        recorder: Recorder,
        on_end: Callable[[SessionDriver], None],
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
        self.state = state
        proven = Beyond.AGAIN if spec.mode.exact_match else Beyond.LOST
        # Who owned it before told what was asked of the prompt, if anything is committed.
        scored = spec.sampling.prompt_logprobs is not None and not state.committed
        prompt_due = len(spec.prompt) - 1 if scored else 0
        self.output = Output(beyond, proven, logprobs_kept, prompt_due)
        self.totals = SpecTotals()
        self.given_up: GivenUp | None = None
        """Why it has ended, where it can never go on."""
        self._text = text
        self._workers, self._recorder = workers, recorder
        self._on_end = on_end
        line, fingerprint = line or WaitingLine(), stored.target_fingerprint
        self._placing = Placing(key, state.config, workers, line, company, fingerprint, home)
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Event] = deque()
        self._unsettled: deque[tuple[Event, tuple[Action, ...], State]] = deque()
        self._draining = self._sent = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._pieces: dict[int, tuple[str, ...]] = {}
        self._record = RecordWriter(
            key,
            state.config.term,
            stored,
            state.committed,
            store,
            on_persisted=lambda index: self.feed(Persisted(self.now(), index)),
            on_refused=self._on_refused,
        )
        self.output.put_all(state.committed, text.pieces())

    @property
    def stored_size(self) -> int:
        """About how many bytes of the store it takes; what is ephemeral is gone at its end."""
        over = self.output.ending is not None
        return FORGOTTEN if over and self.spec.ephemeral else self._record.size

    # --- events in --------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Absorb an event, and the events that its actions cause."""
        self._inbox.append(event)
        if self._draining:
            return
        self._draining, self._sent = True, False
        try:
            while self._inbox:
                if self._unsettled:
                    self._settle()
                self._turn(self._inbox.popleft())
        finally:
            self._draining = False
        if self._sent:
            self._loop.call_soon(self._settle)
        else:
            self._settle()
        self._set_timer()

    def begin(self) -> None:
        """The session exists in the store under this owner; work may start."""
        self.feed(Begin(self.now()))

    def abort(self) -> None:
        """End the session at once."""
        self.feed(AbortRequested(self.now()))

    def wake(self) -> None:
        """Look at the time, and for workers that are missing."""
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

    def hear(self, worker: str, role: Role, event: SessionEvent) -> None:
        """Absorb what a worker says."""
        match event:
            case PromptScores():
                self._take_scores(worker, event)
                return
            case VerifyOpened(_, epoch) if self.output.prompt_missing:
                self._refuse(worker, epoch, "it left tokens of the prompt out")
        absorbed = to_core(worker, role, event, self.now())
        if absorbed is not None:
            self.feed(absorbed)

    def _take_scores(self, worker: str, scores: PromptScores) -> None:
        """Keep what is new of what the session's verifier says of the prompt."""
        attached, output = self.state.verifier, self.output
        if attached is None or (attached.worker, attached.epoch) != (worker, scores.epoch):
            return
        if not put_scores(output, scores.position, scores.rows, self.state.config):
            self._refuse(worker, scores.epoch, "what it said of the prompt cannot be")

    def _refuse(self, worker: str, epoch: int, reason: str) -> None:
        self.feed(WorkerLost(self.now(), Role.VERIFIER, worker, reason, epoch=epoch))

    def _turn(self, event: Event) -> None:
        self.state, actions = rounds.step(self.state, event)
        self._unsettled.append((event, actions, self.state))
        for action in actions:
            self._send(action)

    def _settle(self) -> None:
        """Record, store and emit the results of the turns so far."""
        while self._unsettled:
            event, actions, state = self._unsettled.popleft()
            self._recorder.on_step(self.name, event, actions, state)
            for action in actions:
                self._perform(action)

    def fail(self, error: PacelineError) -> None:
        """End the stream with an error; the stored session does not change."""
        self._stop(error=error)

    def hand_over(self, error: PacelineError) -> asyncio.Future[object]:
        """Release the session to whoever resumes it; done when that is stored.

        The write follows every commit, so everything committed here is stored before.
        """
        paused = self._record.pause()
        self.fail(error)
        return paused

    def _stop(self, ending: Ending | None = None, error: PacelineError | None = None) -> None:
        """Leave the session as it is stored, and free what it holds here."""
        if not self.output.ended:
            self.output.end(ending, error)
            self.abort()
            self._settle()
            self._record.let_go()
            self._close()

    def _set_timer(self) -> None:
        now = self.now()
        wake = rounds.next_wake(self.state, now)
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

    # --- actions out ------------------------------------------------------------------

    def _send(self, action: Action) -> None:
        """Perform the actions for workers; the rest follows when the turn settles."""
        match action:
            case SendVerify(worker, message):
                parent = self._recorder.round_traceparent(self.name, message.round)
                if parent:
                    message = message._replace(traceparent=parent)
                self._workers.send(worker, self.name, message)
            case SendToDrafter(worker, message):
                self._workers.send(worker, self.name, message)
            case OpenOnWorker(worker, message):
                parent = self._recorder.traceparent(self.name)
                self._workers.send(worker, self.name, replace(message, traceparent=parent))
            case Release(role, worker):
                waits = self.state.phase is Phase.RUNNING
                since = self.state.verifier_missing_since if waits else None
                self._placing.released(role, worker, since)
                self._workers.release(worker, self.name)
            case NeedWorker(role):
                self._place(role)
            case _:
                return
        self._sent = True

    def _perform(self, action: Action) -> None:
        match action:
            case Persist(commit):
                self._persist(commit)
            case Emit(commit):
                self._emit(commit)
            case Finish(ending):
                self.output.end(ending)
                self._record.let_go()
                self._close()
            case Suspend(reason, detail):
                self._suspend(reason, detail)
            case SendVerify() | SendToDrafter() | OpenOnWorker() | Release() | NeedWorker():
                pass
            case Discarded():
                pass
            case _:
                assert_never(action)

    def _place(self, role: Role) -> None:
        state, beside = self.state, ""
        if role is Role.VERIFIER:
            since = state.verifier_missing_since
            found = self._placing.verifier(state.committed, state.next_tokens, since)
        else:
            near = state.verifier.worker if state.verifier else ""
            found = self._placing.drafter(state.committed, near)
            if found and near and self._workers.hands_over(found.worker.worker_id, near):
                beside = near
        if found is not None:
            worker = found.worker.worker_id
            self.feed(WorkerAttached(self.now(), role, worker, found.ready_s, beside))

    def _persist(self, commit: Commit) -> None:
        pieces = self._text.append(commit.token_ids, finished=commit.ending is not None)
        self._pieces[commit.record.round] = tuple(pieces)
        self._record.persist(commit)

    def _on_refused(self, error: PacelineError) -> None:
        if isinstance(error, SessionAborted):
            self._stop(Ending(FinishReason.ABORT))
        else:
            self.fail(error)

    def _emit(self, commit: Commit) -> None:
        self.totals.add(commit.record)
        told = self.spec.include_rounds
        delivery = Delivery(
            commit.base_len,
            commit.token_ids,
            self._pieces.pop(commit.record.round),
            tuple(map(pack_row, commit.logprobs)),
            commit.origins if told else (),
            (commit.record,) if told else (),
        )
        self.output.put(delivery)

    def _suspend(self, reason: SuspendReason, detail: str) -> None:
        if reason.for_good:
            self.given_up = GivenUp(detail, costly=reason is SuspendReason.COSTLY)
            self._record.give_up(self.given_up)
            self.output.end(error=end_of(self.given_up))
            self._close()
            return
        self._record.pause()
        self.output.end(error=stopped(reason, detail))
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._placing.leave()
        self._on_end(self)
