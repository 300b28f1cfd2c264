"""Sees (event, actions) after every step of a session's machine; the core emits nothing.

A session whose `Generate` span is not sampled costs its counters and histograms,
and no span. Nothing here waits: exporters run in threads of their own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter

from opentelemetry.context import attach
from opentelemetry.trace import SpanKind, set_span_in_context
from opentelemetry.util.types import AttributeValue

from orchestrator.recorder.attributes import of_request, of_resume
from orchestrator.recorder.known import Known
from orchestrator.recorder.meters import Meters
from orchestrator.recorder.resuming import Resuming
from orchestrator.recorder.spans import SessionSpans
from orchestrator.recorder.turns import Turns
from orchestrator.steering.config import SessionConfig
from orchestrator.steering.events import Action, Event
from orchestrator.steering.state import State
from services.contract.frames import WaitReason
from services.contract.states import Fate
from services.runtime.telemetry import Telemetry, names
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
        self._turns = Turns(self._meters)
        for name, of in (
            (names.PLAIN_SESSIONS, "decodes_plainly"),
            (names.VERIFY_QUEUE, "queued_tokens"),
            (names.DRAFTERS_WANTED, "wants_drafts"),
        ):
            telemetry.gauge(name, partial(self._sum, attrgetter(of)))

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

    def on_turn(
        self,
        session: str,
        event: Event,
        actions: Sequence[Action],
        before: State,
        after: State,
    ) -> None:
        """An event of a session, the actions that it led to, and the state around it."""
        if (known := self._sessions.get(session)) is not None:
            self._turns.hear(known, event, before)
            known.state = after
            for action in actions:
                self._turns.see(known, action, event.at)

    def traceparent(self, session: str) -> str:
        """The header of the session's span; empty when there is no trace."""
        known = self._sessions.get(session)
        return known.traceparent if known else ""

    def start_resume(self, session: str, offset: int, traceparent: str) -> Resuming:
        """A call goes on with a session; `traceparent` is the client's."""
        span = self._tracer.start_span(
            names.RESUME.name, parent_context(traceparent), SpanKind.SERVER
        )
        if span.is_recording():
            span.set_attributes(of_resume(session, offset))
        return Resuming(span)

    def dropped_write(self) -> None:
        """The session store did not take a commit in time."""
        self._meters.dropped_writes.add(1)

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

    def _waiting(self) -> Iterable[tuple[float, tuple[str, ...]]]:
        counted = Counter([known.waits for known in self._sessions.copy().values()])
        return [(counted[reason], (reason.name.lower(),)) for reason in WaitReason]

    def _sum(self, of: Callable[[Known], int]) -> Iterable[tuple[float, tuple[str, ...]]]:
        return [(sum(map(of, self._sessions.copy().values())), ())]


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
