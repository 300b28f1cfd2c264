"""The spans of one sampled session.

    Generate
    ├─ prefill                      a worker opens the session
    └─ spec_round                   a block leaves … its verdict arrives
       ├─ spec_draft                before the block left: drafting runs ahead
       ├─ spec_verify               the verifier's own spans are its children
       └─ persist                   after the verdict: the next round does not wait

Times come from the driver's clock and are shifted to the wall clock by a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from orchestrator.core.events import OpenOnWorker, RoundRecord, SendVerify, WorkerOpened
from services.common.telemetry import names
from services.common.telemetry.propagation import child_context, format_traceparent
from services.common.types import Role


@dataclass(frozen=True, slots=True)
class _Round:
    span: Span
    context: Context
    verify: Span
    traceparent: str


@dataclass(frozen=True, slots=True)
class _Opening:
    at: float
    worker: str
    epoch: int
    tokens: int


class SessionSpans:
    """All spans below one `Generate` span, which is sampled."""

    def __init__(self, tracer: Tracer, generate: Span, shift_ns: int) -> None:
        """`shift_ns` added to the driver's clock gives Unix nanoseconds."""
        self._tracer, self._generate, self._shift = tracer, generate, shift_ns
        self._context = child_context(generate)
        self._rounds: dict[int, _Round] = {}
        self._openings: dict[Role, _Opening] = {}
        self._storing: dict[int, tuple[float, Context]] = {}

    # --- rounds ------------------------------------------------------------------------

    def sent(self, action: SendVerify, at: float) -> None:
        """A block leaves for the verifier."""
        start, message = self._ns(at), action.message
        span = self._tracer.start_span(
            names.SPEC_ROUND.name,
            self._context,
            SpanKind.INTERNAL,
            {
                names.ROUND_INDEX: message.round,
                names.EPOCH: message.epoch,
                names.DRAFT_TOKENS: len(message.tree),
            },
            start_time=start,
        )
        context = child_context(span)
        if len(message.tree):
            spent: dict[str, AttributeValue] = {names.DRAFT_MS: action.draft_ms}
            self._whole(names.SPEC_DRAFT, context, at - action.draft_ms / 1e3, at, spent)
        verify = self._tracer.start_span(
            names.SPEC_VERIFY.name, context, SpanKind.CLIENT, start_time=start
        )
        parent = format_traceparent(verify.get_span_context())
        self._rounds[message.round] = _Round(span, context, verify, parent)

    def traceparent(self, round: int) -> str:
        """The parent of what the verifier does for a round under way; else empty."""
        under_way = self._rounds.get(round)
        return under_way.traceparent if under_way else ""

    def concluded(self, record: RoundRecord, outcome: str) -> Context | None:
        """The verdict has come; the context of the round's span."""
        under_way = self._rounds.pop(record.index, None)
        if under_way is None:
            return None
        end = self._ns(record.ended_at)
        under_way.verify.set_attributes(
            {
                names.VERIFIER: record.verifier,
                names.VERIFY_MS: record.verify_ms,
                names.QUEUE_MS: record.queue_ms,
                names.BATCH_SIZE: record.batch_size,
            }
        )
        under_way.verify.end(end)
        under_way.span.set_attributes(_round_attributes(record, outcome))
        under_way.span.end(end)
        return under_way.context

    def abandoned(self, round: int, at: float) -> None:
        """No verdict will come any more."""
        under_way = self._rounds.pop(round, None)
        if under_way is not None:
            under_way.verify.set_attribute(names.COMPLETED, False)
            under_way.verify.end(self._ns(at))
            under_way.span.set_attribute(names.ROUND_OUTCOME, names.Outcome.ABANDONED)
            under_way.span.end(self._ns(at))

    # --- store -------------------------------------------------------------------------

    def storing(self, round: int, context: Context, at: float) -> None:
        """A round's tokens go to the store."""
        self._storing[round] = (at, context)

    def stored(self, up_to: int, at: float) -> None:
        """The store has everything up to this round."""
        for round in [waiting for waiting in self._storing if waiting <= up_to]:
            self._end_storing(round, at, completed=True)

    def _end_storing(self, round: int, at: float, *, completed: bool) -> None:
        start, context = self._storing.pop(round)
        about: dict[str, AttributeValue] = {
            names.ROUND_INDEX: round,
            names.COMPLETED: completed,
        }
        self._whole(names.PERSIST, context, start, at, about)

    # --- workers -----------------------------------------------------------------------

    def opening(self, role: Role, action: OpenOnWorker, at: float) -> None:
        """The session goes to a worker."""
        self.released(role, at)
        message = action.message
        tokens = len(message.prompt) + len(message.committed)
        self._openings[role] = _Opening(at, action.worker, message.epoch, tokens)

    def opened(self, event: WorkerOpened) -> None:
        """A worker has the session."""
        opening = self._openings.get(event.role)
        if opening is not None and (opening.worker, opening.epoch) == (event.worker, event.epoch):
            self._end_opening(event.role, event.at, event.cached_tokens)

    def released(self, role: Role, at: float) -> None:
        """The worker of a role is gone, perhaps before it had the session."""
        if role in self._openings:
            self._end_opening(role, at)

    def _end_opening(self, role: Role, at: float, cached_tokens: int | None = None) -> None:
        opening = self._openings.pop(role)
        about: dict[str, AttributeValue] = {
            names.ROLE: role.value,
            names.WORKER: opening.worker,
            names.EPOCH: opening.epoch,
            names.INPUT_TOKENS: opening.tokens,
            names.COMPLETED: cached_tokens is not None,
            names.CACHED_TOKENS: cached_tokens or 0,
        }
        self._whole(names.PREFILL, self._context, opening.at, at, about)

    # --- end ---------------------------------------------------------------------------

    def close(self, at: float, about: Mapping[str, AttributeValue], error: str) -> None:
        """Give up what is under way, then end `Generate`; `error` is empty or a name."""
        for round in tuple(self._rounds):
            self.abandoned(round, at)
        for role in tuple(self._openings):
            self._end_opening(role, at)
        for round in tuple(self._storing):
            self._end_storing(round, at, completed=False)
        self._generate.set_attributes(about)
        if error:
            self._generate.set_attribute(names.ERROR_TYPE, error)
            self._generate.set_status(Status(StatusCode.ERROR, error))
        self._generate.end(self._ns(at))

    def _whole(
        self,
        name: names.SpanName,
        parent: Context,
        start: float,
        end: float,
        about: Mapping[str, AttributeValue],
    ) -> None:
        span = self._tracer.start_span(
            name.name, parent, SpanKind.CLIENT, about, start_time=self._ns(start)
        )
        span.end(self._ns(end))

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self._shift


def _round_attributes(record: RoundRecord, outcome: str) -> dict[str, AttributeValue]:
    return {
        names.ROUND_OUTCOME: outcome,
        names.DRAFT_TOKENS: record.draft_tokens,
        names.ACCEPTED_TOKENS: record.accepted_tokens,
        names.EMITTED_TOKENS: record.emitted_tokens,
        names.DISCARDED_TOKENS: record.discarded_tokens,
        names.BAD_Q_ROWS: record.bad_q_rows,
        names.DRAFT_MS: record.draft_ms,
        names.VERIFY_MS: record.verify_ms,
        names.QUEUE_MS: record.queue_ms,
        names.BATCH_SIZE: record.batch_size,
        names.DRAFTER: record.drafter,
        names.VERIFIER: record.verifier,
        names.MODE: record.mode.name.lower(),
    }
