"""Sees (event, actions) after every step of the round machine; the core emits nothing.

A session whose `Generate` span is not sampled costs its counters and histograms,
and no span. Nothing here waits: exporters run in threads of their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from opentelemetry.context import attach
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.util.types import AttributeValue

from orchestrator.core.events import (
    Action,
    Discarded,
    DraftArrived,
    Emit,
    Event,
    Finish,
    OpenOnWorker,
    Persist,
    Persisted,
    Release,
    SendToDrafter,
    SendVerify,
    StatesArrived,
    Suspend,
    VerdictArrived,
    WorkerLost,
    WorkerOpened,
)
from orchestrator.core.state import State
from orchestrator.recorder.attributes import of_request, of_resume
from orchestrator.recorder.demand import (
    decodes_plainly,
    queued_tokens,
    steered_plainly,
    steered_tokens,
    steered_wants,
    wants_drafts,
)
from orchestrator.recorder.known import Known, outcomes
from orchestrator.recorder.meters import Meters
from orchestrator.recorder.reasons import cause, fallback
from orchestrator.recorder.resuming import Resuming
from orchestrator.recorder.spans import SessionSpans
from orchestrator.recorder.steered import SteeredTurns
from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.events import Action as SteeredAction
from orchestrator.steering.events import Event as SteeredEvent
from orchestrator.steering.rounds import Commit
from orchestrator.steering.state import State as SteeredState
from services.contract.frames import WaitReason
from services.contract.states import Fate
from services.contract.types import OpenVerify, Role, Verify
from services.runtime.telemetry import Telemetry, names
from services.runtime.telemetry.names import Cause, Fallback, RoundOutcome, Where
from services.runtime.telemetry.propagation import format_traceparent, parent_context


class Recorder:
    """Spans and metrics of all sessions of one orchestrator. Belongs to the event loop."""

    def __init__(
        self, telemetry: Telemetry, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is the one that events are stamped with."""
        self._tracer, self._children = telemetry.tracer, telemetry.children
        self._clock = clock
        self._meters = Meters(telemetry)
        self._sessions: dict[str, Known] = {}
        telemetry.gauge(names.SESSIONS, lambda: [(len(self._sessions), ("orchestrator",))])
        telemetry.gauge(names.WAITING, self._waiting)
        self._turns = SteeredTurns(self._meters)
        for name, of, of_steered in (
            (names.PLAIN_SESSIONS, decodes_plainly, steered_plainly),
            (names.VERIFY_QUEUE, queued_tokens, steered_tokens),
            (names.DRAFTERS_WANTED, wants_drafts, steered_wants),
        ):
            telemetry.gauge(name, partial(self._sum, of, of_steered))

    def start_generate(
        self,
        session: str,
        config: SessionConfig,
        *,
        model: str = "",
        traceparent: str = "",
    ) -> None:
        """A session begins here, or goes on. Call it once admitted.

        The trace header is the client's, or that of the call that goes on with it.
        """
        now = self._clock()
        wall = time.time_ns()
        span = self._tracer.start_span(
            names.GENERATE.name,
            parent_context(traceparent),
            SpanKind.SERVER,
            start_time=wall,
        )
        spans = None
        if span.is_recording() and self._children is not None:
            span.set_attributes(of_request(session, config, model))
            spans = SessionSpans(self._children, span, wall - int(now * 1e9))
        parent = format_traceparent(span.get_span_context())
        self._sessions[session] = Known(config, span, parent, spans, now)

    def on_step(self, session: str, event: Event, actions: Sequence[Action], state: State) -> None:
        """An event, the actions that it led to, and the state after it."""
        known = self._sessions.get(session)
        if known is None:
            return
        before, known.state = known.state, state
        self._hear(known, event, before)
        for action in actions:
            self._see(known, action, event.at)
        if before is not None and before.drafted and _void(before, state):
            self._meters.discarded.add(before.drafted, Where.UNSENT)
            if known.spans is not None:
                known.spans.thrown_away(before, event.at)
        if len(known.rounds) != len(state.in_flight):
            self._abandon(known, {block.round for block in state.in_flight}, event.at)

    def on_turn(
        self,
        session: str,
        event: SteeredEvent,
        actions: Sequence[SteeredAction],
        before: SteeredState,
        after: SteeredState,
    ) -> None:
        """An event of a steered session, the actions that it led to, and the state around it."""
        if (known := self._sessions.get(session)) is not None:
            self._turns.hear(known, event, before)
            known.steered = after
            for action in actions:
                self._turns.see(known, action, event.at)

    def traceparent(self, session: str) -> str:
        """The header of the session's span; empty when there is no trace."""
        known = self._sessions.get(session)
        return known.traceparent if known else ""

    def round_traceparent(self, session: str, round: int) -> str:
        """The header of a round's verifier spans, from just before the round is sent.

        Empty where the session has no spans: its opening said so.
        """
        known = self._sessions.get(session)
        return known.spans.traceparent(round) if known and known.spans is not None else ""

    def start_resume(self, session: str, offset: int, traceparent: str) -> Resuming:
        """A call goes on with a session; `traceparent` is the client's."""
        span = self._tracer.start_span(
            names.RESUME.name, parent_context(traceparent), SpanKind.SERVER
        )
        if span.is_recording():
            span.set_attributes(of_resume(session, offset))
        return Resuming(span)

    def dropped_writes(self, count: int) -> None:
        """The session store did not take so many commits in time."""
        self._meters.dropped_writes.add(count)

    def states(self, fate: Fate, size: int) -> None:
        """Bytes of the target's states left for a drafter, or found no room in its link."""
        self._meters.states(fate, size)

    def fenced_write(self) -> None:
        """The session store refused a write, as another orchestrator owns the session."""
        self._meters.fenced_writes.add(1)

    def bind(self, session: str) -> None:
        """From here on, log lines of the current task carry the session's trace ids."""
        known = self._sessions.get(session)
        if known is not None:
            attach(set_span_in_context(known.span))

    def end_generate(self, session: str, *, error: str = "") -> None:
        """The session leaves this orchestrator; `error` is a name, never a text. Idempotent."""
        known = self._sessions.pop(session, None)
        if known is None:
            return
        now = self._clock()
        # The reason of the suspension says more than the readers' error.
        known.error = known.error or error
        self._abandon(known, set(), now)
        reason = "error" if error else known.finish or "detached"
        self._meters.ended(now - known.started_at, reason, known.error)
        if reason in ("stop", "length"):
            self._finished(known)
        if known.spans is not None:
            known.spans.close(now, _result_attributes(known), known.error)

    def _finished(self, known: Known) -> None:
        if known.emitted > 1:
            self._meters.per_token.record((known.last_at - known.first_at) / (known.emitted - 1))
        if known.totals.draft_tokens:
            self._meters.drafted(known.totals, known.config.methods, known.config.mode)

    # --- events and actions ------------------------------------------------------------

    def _hear(self, known: Known, event: Event, before: State | None) -> None:
        spans = known.spans
        match event:
            case DraftArrived():
                pass  # A third of all events, and nothing to note of it.
            case Persisted():
                for round in [waiting for waiting in known.storing if waiting <= event.round]:
                    self._meters.store_seconds.record(event.at - known.storing.pop(round))
                if spans is not None:
                    spans.stored(event.round, event.at)
            case WorkerOpened():
                if event.role is Role.VERIFIER and before is not None:
                    tokens = len(before.config.prompt) + len(before.committed)
                    self._meters.prefilled(tokens, min(event.cached_tokens, tokens))
                if spans is not None:
                    opened = event.worker, event.epoch, event.cached_tokens
                    spans.opened(event.role, *opened, event.at)
            case VerdictArrived() if event.verdict.states:
                self._meters.states(Fate.RECEIVED, len(event.verdict.states))
            case StatesArrived():
                self._meters.states(Fate.RECEIVED, len(event.states.states))
            case WorkerLost(at, role, worker) if spans is not None:
                spans.released(role, at)
                if before is not None and _attached(before, role) == worker:
                    spans.lost(role, worker, cause(event), at)

    def _see(self, known: Known, action: Action, at: float) -> None:
        match action:
            case SendVerify():
                self._sent(known, action)
                if known.spans is not None:
                    known.spans.sent(action, at)
            case Persist(commit):
                self._conclude(known, commit, at)
            case Emit(commit):
                self._turns.emitted(known, len(commit.token_ids), at)
            case SendToDrafter():
                pass  # As often as a commit, and nothing to note of it.
            case Discarded(record):
                known.rounds.pop(record.round, None)
                self._meters.round(record, RoundOutcome.DISCARDED)
                if known.spans is not None:
                    known.spans.concluded(record, RoundOutcome.DISCARDED)
            case OpenOnWorker():
                self._opening(known, action, at)
            case Release(role, worker) if known.spans is not None:
                known.spans.released(role, at)
                if known.state is not None and known.state.phase is Phase.RUNNING:
                    known.spans.lost(role, worker, Cause.FAILED, at)
            case Finish(ending):
                known.finish = ending.reason.name.lower()
            case Suspend(reason):
                known.finish, known.error = "suspended", reason.name.lower()

    def _sent(self, known: Known, action: SendVerify) -> None:
        block, state = action.message, known.state
        assert state is not None
        known.rounds[block.round] = reason = _reason(block, state)
        if reason:
            self._meters.fallbacks.add(1, reason)
        for flying in state.in_flight:
            if flying.round == block.round and flying.waited_ms:
                self._meters.starved.add(flying.waited_ms / 1e3)

    def _conclude(self, known: Known, commit: Commit, at: float) -> None:
        [(record, outcome)] = outcomes(commit)
        reason = known.rounds.pop(record.round, "")
        if reason is None:
            reason = "" if record.draft_tokens else Fallback.NOTHING_READY
            if reason:
                self._meters.fallbacks.add(1, reason)
        known.storing[record.round] = at
        known.totals.add(record)
        known.near_ties += record.near_ties
        self._meters.round(record, outcome)
        if known.spans is not None:
            known.spans.concluded(record, outcome, reason, stores=True)

    def _opening(self, known: Known, action: OpenOnWorker, at: float) -> None:
        message = action.message
        role = Role.VERIFIER if isinstance(message, OpenVerify) else Role.DRAFTER
        if role in known.opened:
            self._meters.migrations.add(1, role.value)
        known.opened.add(role)
        if known.spans is not None:
            tokens = len(message.prompt) + len(message.committed)
            known.spans.opening(role, action.worker, message.epoch, tokens, at)

    def _abandon(self, known: Known, in_flight: set[int], at: float) -> None:
        for round in known.rounds.keys() - in_flight:
            del known.rounds[round]
            self._meters.rounds.add(1, RoundOutcome.ABANDONED)
            if known.spans is not None:
                known.spans.abandoned(round, at)

    def _waiting(self) -> Iterable[tuple[float, tuple[str, ...]]]:
        counted = Counter([known.waits for known in self._sessions.copy().values()])
        return [(counted[reason], (reason.name.lower(),)) for reason in WaitReason]

    def _sum(
        self, of: Callable[[State], int], of_steered: Callable[[Known], int]
    ) -> Iterable[tuple[float, tuple[str, ...]]]:
        every = self._sessions.copy().values()
        states = [known.state for known in every if known.state is not None]
        steered = [known for known in every if known.steered is not None]
        return [(sum(map(of, states)) + sum(map(of_steered, steered)), ())]


def _reason(block: Verify, state: State) -> str | None:
    """Why a block holds no draft token; None: it may take some at the verifier."""
    if block.allowance is not None:
        return None
    return "" if block.tree.token_ids else fallback(state)


def _attached(state: State, role: Role) -> str:
    """The worker of a role; empty where there is none."""
    attached = state.verifier if role is Role.VERIFIER else state.drafter
    return attached.worker if attached is not None else ""


def _void(before: State, after: State) -> bool:
    """Whether the unsent draft tokens are void."""
    return after.epoch != before.epoch or after.phase is not before.phase


def _result_attributes(known: Known) -> dict[str, AttributeValue]:
    about: dict[str, AttributeValue] = {
        names.OUTPUT_TOKENS: known.emitted,
        names.EMITTED_TOKENS: known.emitted,
        names.ROUNDS: known.totals.target_steps,
        names.NEAR_TIES: known.near_ties,
    }
    if known.emitted:
        about[names.FIRST_TOKEN] = known.first_at - known.started_at
    if known.finish and not known.error:
        about[names.FINISH_REASONS] = (known.finish,)
    return about
