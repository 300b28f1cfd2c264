"""Drives one session: feeds events to the round machine and performs its actions.

    feed(event) → step → perform each action, in order → later: more events

Nothing here awaits between reading and replacing the state. What must be waited
for (the store, a worker, a timer) comes back as an event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from orchestrator.core import rounds
from orchestrator.core.events import (
    AbortRequested,
    Action,
    Commit,
    Discarded,
    Emit,
    Ending,
    Event,
    Finish,
    NeedWorker,
    OpenOnWorker,
    Persist,
    Persisted,
    Release,
    RoundRecord,
    SendToDrafter,
    SendVerify,
    Suspend,
    SuspendReason,
    Tick,
    WorkerAttached,
)
from orchestrator.core.placement import Wanted
from orchestrator.core.state import State
from orchestrator.output import Delivery, Output
from orchestrator.ports import Recorder, SessionKey, SessionStore, Workers
from orchestrator.requests import SessionSpec
from orchestrator.text import TextStream
from orchestrator.totals import SpecTotals
from services.common.errors import DeadlinePassed, NoWorker, PacelineError, SessionAborted
from services.common.types import FinishReason, Role


class SessionDriver:
    """One live session. All methods belong to the event loop."""

    def __init__(
        self,
        key: SessionKey,
        spec: SessionSpec,
        state: State,
        text: TextStream,
        *,
        workers: Workers,
        store: SessionStore,
        recorder: Recorder,
        on_end: Callable[[SessionDriver], None],
    ) -> None:
        """`text` has taken what `state.committed` holds already."""
        self.key = key
        self.name = state.config.session
        self.spec = spec
        self.state = state
        self.output = Output()
        self.totals = SpecTotals()
        self._text = text
        self._workers, self._store, self._recorder = workers, store, recorder
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._pieces: dict[int, tuple[str, ...]] = {}
        self._verifier_fingerprint = ""
        self._failed_on: dict[Role, str] = {}
        if state.committed:
            pieces = tuple(text.pieces())
            self.output.put(Delivery(0, state.committed, pieces))

    def now(self) -> float:
        """The clock of every event."""
        return time.monotonic()

    # --- events in --------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Absorb an event, and whatever performing its actions brings up."""
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
        self.state, actions = rounds.step(self.state, event)
        self._recorder.on_step(self.name, event, actions, self.state)
        for action in actions:
            self._perform(action)

    def fail(self, error: PacelineError) -> None:
        """End the stream with an error; the stored session stays what it is."""
        self._stop(error=error)

    def _stop(self, ending: Ending | None = None, error: PacelineError | None = None) -> None:
        """Leave the session as it is stored, and free what it holds here."""
        if not self.output.ended:
            self.output.end(ending, error)
            self.feed(AbortRequested(self.now()))
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
        self.feed(Tick(self.now()))

    # --- actions out ------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case NeedWorker(role):
                self._place(role)
            case OpenOnWorker(worker, message):
                parent = self._recorder.traceparent(self.name)
                self._workers.send(worker, self.name, replace(message, traceparent=parent))
            case SendVerify(worker, message):
                parent = self._recorder.round_traceparent(self.name, message.round)
                self._workers.send(worker, self.name, replace(message, traceparent=parent))
            case SendToDrafter(worker, message):
                self._workers.send(worker, self.name, message)
            case Persist(commit):
                self._persist(commit)
            case Emit(commit):
                self._emit(commit)
            case Discarded():
                pass
            case Release(role, worker):
                self._failed_on[role] = worker
                self._workers.release(worker, self.name)
            case Finish(ending):
                self.output.end(ending)
                self._close()
            case Suspend(reason, detail):
                self._suspend(reason, detail)
            case _:
                assert_never(action)

    def _place(self, role: Role) -> None:
        config = self.state.config
        tokens = len(config.prompt) + config.sampling.max_tokens + config.largest_block
        drafts = role is Role.DRAFTER
        wanted = Wanted(
            role,
            tokens,
            method=config.method if drafts else "",
            capabilities=config.drafter_capabilities if drafts else (),
            model_fingerprint=self._verifier_fingerprint,
            avoid=(self._failed_on[role],) if role in self._failed_on else (),
        )
        placed = self._workers.place(wanted)
        if placed is None:
            return
        if role is Role.VERIFIER:
            # Pinned: another target's continuation would be another law.
            self._verifier_fingerprint = placed.model_fingerprint
        self.feed(WorkerAttached(self.now(), role, placed.worker_id))

    def _persist(self, commit: Commit) -> None:
        ending, record = commit.ending, commit.record
        pieces = self._text.append(commit.token_ids, finished=ending is not None)
        self._pieces[record.index] = tuple(pieces)
        term = self.state.config.term
        stored: Awaitable[object] = self._store.commit(
            self.key, term, record.index, commit.base_len, commit.token_ids, _summary(record)
        )
        if ending is not None:
            matched = ending.matched_text or ending.matched_token
            length = commit.base_len + len(commit.token_ids)
            # The one writer keeps the order: this resolves after the commit.
            _retrieve(stored)
            stored = self._store.finish(self.key, term, length, ending.reason, matched)
        future = asyncio.ensure_future(stored)
        future.add_done_callback(lambda done: self._on_stored(record.index, done))

    def _on_stored(self, index: int, done: asyncio.Future[object]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.feed(Persisted(self.now(), index))
        elif isinstance(error, SessionAborted):
            self._stop(Ending(FinishReason.ABORT))
        elif isinstance(error, PacelineError):
            self.fail(error)
        else:
            self.fail(PacelineError("the session store failed unexpectedly"))
            self._loop.call_exception_handler({"message": "session store", "exception": error})

    def _emit(self, commit: Commit) -> None:
        self.totals.add(commit.record)
        delivery = Delivery(
            commit.base_len,
            commit.token_ids,
            self._pieces.pop(commit.record.index),
            commit.logprobs,
            commit.origins,
            (commit.record,),
        )
        self.output.put(delivery)

    def _suspend(self, reason: SuspendReason, detail: str) -> None:
        _retrieve(self._store.pause(self.key, self.state.config.term))
        message = f"{reason.value}: {detail}" if detail else reason.value
        error: PacelineError
        if reason is SuspendReason.DEADLINE:
            error = DeadlinePassed(f"{message}; the session can be resumed")
        else:
            error = NoWorker(f"{message}; the session can be resumed")
        self.output.end(error=error)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_end(self)


def _retrieve(awaitable: Awaitable[object]) -> None:
    """Let a write run whose outcome a later write will tell."""

    def look(done: asyncio.Future[object]) -> None:
        if not done.cancelled():
            done.exception()

    asyncio.ensure_future(awaitable).add_done_callback(look)


def _summary(record: RoundRecord) -> bytes:
    """What the store keeps of a round: enough to account for it, no text."""
    kept = {
        "epoch": record.epoch,
        "draft_tokens": record.draft_tokens,
        "accepted_tokens": record.accepted_tokens,
        "verify_ms": round(record.verify_ms, 3),
        "round_ms": round(record.round_ms, 3),
    }
    return json.dumps(kept, separators=(",", ":")).encode()
