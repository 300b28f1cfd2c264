"""The spans of one sampled session.

    Generate
    ├─ prefill                      a worker opens the session
    ├─ migrate                      … after another was lost
    ├─ spec_draft                   drafted beyond a rejection, and dropped
    └─ spec_round                   a block leaves … its verdict arrives
       ├─ spec_draft                before the block left: drafting is asynchronous
       ├─ spec_verify               the verifier's own spans are its children
       └─ persist                   after the verdict: the next round does not wait

Times come from the driver's clock and are shifted to the wall clock by a constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opentelemetry.trace import Span, SpanContext, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from orchestrator.core.events import SendVerify
from orchestrator.core.state import State
from orchestrator.recorder.attributes import of_round
from orchestrator.steering.rounds import RoundRecord
from services.contract.types import Role, Verify
from services.runtime.telemetry import names
from services.runtime.telemetry.children import ChildSpans, child_of, round_of, verifying_of
from services.runtime.telemetry.propagation import format_traceparent


@dataclass(frozen=True, slots=True)
class _Round:
    place: SpanContext
    verify: SpanContext
    at: float
    block: Verify
    draft_ms: float


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
        self._rounds: dict[int, _Round] = {}
        self._places: dict[int, tuple[SpanContext, SpanContext]] = {}
        self._openings: dict[Role, _Opening] = {}
        self._losses: dict[Role, _Loss] = {}
        self._rejecter: SpanContext | None = None
        self._storing: dict[int, tuple[SpanContext, float]] = {}

    # --- rounds ------------------------------------------------------------------------

    def sent(self, action: SendVerify, at: float) -> None:
        """A block leaves for the verifier."""
        block = action.message
        known = self._places.pop(block.round) if block.round in self._places else None
        place, verify = known or self._place()
        self._rounds[block.round] = _Round(place, verify, at, block, action.draft_ms)

    def traceparent(self, round: int) -> str:
        """The parent of a round's verifier spans, from just before the round is sent."""
        under_way = self._rounds.get(round)
        if under_way is not None:
            return format_traceparent(under_way.verify)
        if round not in self._places:
            self._places[round] = self._place()
        return format_traceparent(self._places[round][1])

    def _place(self) -> tuple[SpanContext, SpanContext]:
        place = child_of(self._root)
        return place, child_of(place)

    def concluded(
        self, record: RoundRecord, outcome: str, fallback: str = "", *, stores: bool = False
    ) -> None:
        """The verdict has come; `stores` = its tokens go to the store now.

        `fallback`: why there was no draft in it, or empty.
        """
        under_way = self._rounds.pop(record.round, None)
        if under_way is None:
            return
        about = of_round(record, outcome)
        if fallback:
            about[names.FALLBACK] = fallback
        discarded = outcome == names.RoundOutcome.DISCARDED
        links = self._culprit() if discarded else ()
        if under_way.block.allowance is not None and record.draft_tokens:
            # A tree taken in the verifier's process was drafted before the round began.
            under_way = replace(under_way, draft_ms=record.draft_ms)
        drafted = record.draft_tokens > 0
        self._end_round(under_way, record.started_at, record.ended_at, about, drafted, links)
        if not discarded:
            self._rejecter = under_way.place
        if stores:
            self._storing[record.round] = (under_way.place, record.ended_at)

    def judged(self, record: RoundRecord, outcome: str, fallback: str) -> None:
        """A round of a steered session, whose place every process knows."""
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

    def _culprit(self) -> tuple[SpanContext, ...]:
        """The round whose verdict voids what was drafted beyond it."""
        return () if self._rejecter is None else (self._rejecter,)

    def thrown_away(self, before: State, at: float) -> None:
        """The unsent drafts are void; `before` is the state that had them."""
        drafter = before.drafter
        about: dict[str, AttributeValue] = {
            names.DISCARDED_DRAFT: True,
            names.DRAFT_TOKENS: before.drafted,
            names.OPENING: before.epoch,
            names.DRAFTER: drafter.worker if drafter is not None else "",
        }
        end = self._ns(at)
        start = end - int(1e6 * sum(piece.draft_ms for piece in before.tail))
        place, links = child_of(self._root), self._culprit()
        self._children.emit(names.SPEC_DRAFT, place, self._root, start, end, about, links=links)

    def abandoned(self, round: int, at: float) -> None:
        """No verdict will come."""
        under_way = self._rounds.pop(round, None)
        if under_way is not None:
            block = under_way.block
            about: dict[str, AttributeValue] = {
                names.ROUND_INDEX: block.round,
                names.OPENING: block.epoch,
                names.ROUND_OUTCOME: names.RoundOutcome.ABANDONED,
                names.DRAFT_TOKENS: len(block.tree),
            }
            self._end_round(under_way, under_way.at, at, about, len(block.tree) > 0)

    def _end_round(
        self,
        under_way: _Round,
        began: float,
        end: float,
        about: Mapping[str, AttributeValue],
        drafted: bool,
        links: Sequence[SpanContext] = (),
    ) -> None:
        place, start = under_way.place, self._ns(began)
        if drafted:
            drafting = start - int(under_way.draft_ms * 1e6)
            self._children.emit(names.SPEC_DRAFT, child_of(place), place, drafting, start)
        end_ns = self._ns(end)
        rule = {key: value for key, value in about.items() if key == names.MODE}
        self._children.emit(names.SPEC_VERIFY, under_way.verify, place, start, end_ns, rule)
        self._children.emit(names.SPEC_ROUND, place, self._root, start, end_ns, about, links=links)

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
        for round in tuple(self._rounds):
            self.abandoned(round, at)
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
