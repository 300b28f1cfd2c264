"""The spans of one sampled session.

    Generate
    ├─ prefill                      a worker opens the session
    ├─ migrate                      … after another was lost
    └─ spec_round                   a step could take the session … the step ends
       ├─ spec_draft                often before the round: drafting is asynchronous
       ├─ spec_verify               the verifier's own spans are its children
       └─ persist                   after the round: the next one does not wait

Times come from the driver's clock and are shifted to the wall clock by a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanContext, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from orchestrator.recorder.attributes import of_round
from orchestrator.steering.rounds import RoundRecord
from services.contract.types import Role
from services.runtime.telemetry import names
from services.runtime.telemetry.children import ChildSpans, child_of, round_of, verifying_of


@dataclass(frozen=True, slots=True)
class _Opening:
    at: float
    worker: str
    epoch: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Loss:
    at: float
    worker: str
    cause: str


class SessionSpans:
    """All spans below one `Generate` span, which is sampled."""

    def __init__(self, children: ChildSpans, generate: Span, shift_ns: int) -> None:
        """`shift_ns` added to the driver's clock gives Unix nanoseconds."""
        self._children, self._generate, self._shift = children, generate, shift_ns
        self._root = generate.get_span_context()
        self._openings: dict[Role, _Opening] = {}
        self._losses: dict[Role, _Loss] = {}
        self._storing: dict[int, tuple[SpanContext, float]] = {}

    # --- rounds ------------------------------------------------------------------------

    def judged(self, record: RoundRecord, outcome: str, fallback: str) -> None:
        """A round, whose place every process knows."""
        place = round_of(self._root, record.epoch, record.base_len)
        about = of_round(record, outcome)
        if fallback:
            about[names.FALLBACK] = fallback
        start, end = self._ns(record.started_at), self._ns(record.ended_at)
        if record.draft_tokens:
            came = start + int((record.queue_ms - record.age_ms) * 1e6)
            drafting = came - int(record.draft_ms * 1e6)
            self._children.emit(names.SPEC_DRAFT, child_of(place), place, drafting, came)
        rule: Mapping[str, AttributeValue] = {names.MODE: about[names.MODE]}
        verify = verifying_of(self._root, record.epoch, record.base_len)
        self._children.emit(names.SPEC_VERIFY, verify, place, start, end, rule)
        self._children.emit(names.SPEC_ROUND, place, self._root, start, end, about)

    def storing(self, last: RoundRecord, at: float) -> None:
        """A commit goes to the store, which stands behind the last of its rounds."""
        self._storing[last.round] = round_of(self._root, last.epoch, last.base_len), at

    # --- store -------------------------------------------------------------------------

    def stored(self, up_to: int, at: float) -> None:
        """The store has everything up to this round."""
        for round in [waiting for waiting in self._storing if waiting <= up_to]:
            self._end_storing(round, at, {})

    def _end_storing(self, round: int, at: float, about: Mapping[str, AttributeValue]) -> None:
        parent, start = self._storing.pop(round)
        self._children.emit(
            names.PERSIST, child_of(parent), parent, self._ns(start), self._ns(at), about
        )

    # --- workers -----------------------------------------------------------------------

    def opening(self, role: Role, worker: str, number: int, tokens: int, at: float) -> None:
        """The session goes to a worker, with a text of so many tokens."""
        self.released(role, at)
        self._openings[role] = _Opening(at, worker, number, tokens)

    def opened(self, role: Role, worker: str, number: int, cached_tokens: int, at: float) -> None:
        """A worker has the session."""
        opening = self._openings.get(role)
        if opening is not None and (opening.worker, opening.epoch) == (worker, number):
            self._end_opening(role, at, cached_tokens)
            self._end_loss(role, at, worker)

    def lost(self, role: Role, worker: str, cause: str, at: float) -> None:
        """The session lost a worker that it had; only the first of several losses counts."""
        self._losses.setdefault(role, _Loss(at, worker, cause))

    def _end_loss(self, role: Role, at: float, worker: str = "") -> None:
        loss = self._losses.pop(role, None)
        if loss is None:
            return
        about: dict[str, AttributeValue] = {
            names.ROLE: role.value,
            names.FORMER_WORKER: loss.worker,
            names.WORKER: worker,
            names.MIGRATE_CAUSE: loss.cause,
            names.COMPLETED: bool(worker),
        }
        start, end = self._ns(loss.at), self._ns(at)
        self._children.emit(names.MIGRATE, child_of(self._root), self._root, start, end, about)

    def released(self, role: Role, at: float) -> None:
        """The worker of a role is gone, perhaps before it had the session."""
        if role in self._openings:
            self._end_opening(role, at)

    def _end_opening(self, role: Role, at: float, cached_tokens: int | None = None) -> None:
        opening = self._openings.pop(role)
        about: dict[str, AttributeValue] = {
            names.ROLE: role.value,
            names.WORKER: opening.worker,
            names.OPENING: opening.epoch,
            names.INPUT_TOKENS: opening.tokens,
            names.COMPLETED: cached_tokens is not None,
            names.CACHED_TOKENS: cached_tokens or 0,
        }
        start, end = self._ns(opening.at), self._ns(at)
        place = child_of(self._root)
        self._children.emit(names.PREFILL, place, self._root, start, end, about, kind="client")

    # --- end ---------------------------------------------------------------------------

    def close(self, at: float, about: Mapping[str, AttributeValue], error: str) -> None:
        """End the open spans as abandoned, then `Generate`; `error` is empty or a name."""
        for role in tuple(self._openings):
            self._end_opening(role, at)
        for role in tuple(self._losses):
            self._end_loss(role, at)
        for round in tuple(self._storing):
            self._end_storing(round, at, {names.COMPLETED: False})
        self._generate.set_attributes(about)
        if error:
            self._generate.set_attribute(names.ERROR_TYPE, error)
            self._generate.set_status(Status(StatusCode.ERROR, error))
        self._generate.end(self._ns(at))

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self._shift
