"""Traces the steps of a worker's engine.

    engine thread   on_step ──▶ a bounded deque          (an append, nothing else)
    telemetry thread            ──▶ spans and histograms

A step is one span, linked to the spans of the rounds it served, and for each of
these rounds that is sampled a child span that leads back to the batch by a link.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from services.contract.states import Fate, OnStates
from services.contract.types import Progress, VerifyMode
from services.runtime.step_records import OnChoices, OnStep, StepEntry, StepRecord
from services.runtime.telemetry import names
from services.runtime.telemetry.children import ChildSpans, child_of, sampled_root, verifying_of
from services.runtime.telemetry.loop_lag import LoopLag
from services.runtime.telemetry.propagation import parent_context, span_context
from services.runtime.telemetry.setup import Telemetry

Worker = Literal["verifier", "drafter"]

_MOST_WAITING = 4096
_TOGETHER_SECONDS = 0.05
"""For which steps are collected: a thread that wakes behind each holds the engine's up."""
_BATCH_SPANS: dict[Worker, names.SpanName] = {
    "verifier": names.VERIFY_BATCH,
    "drafter": names.DRAFT_BATCH,
}
_KINDS: dict[Worker, tuple[str, ...]] = {
    "verifier": ("prefill", "verify"),
    "drafter": ("prefill", "draft"),
}
_MEMBER_SPANS = {
    "verify": names.VERIFY,
    "draft": names.DRAFT,
    "prefill": names.PREFILL,
}


class StepTracer:
    """What `on_step` makes goes to a core; `watch` and `close` belong to the process."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.loop_lag = LoopLag(telemetry)
        self._children = telemetry.children
        self._seconds = telemetry.histogram(names.STEP_SECONDS)
        self._sessions = telemetry.histogram(names.STEP_SESSIONS)
        self._waits = telemetry.histogram(names.STEP_WAIT_SECONDS)
        self._tokens = telemetry.counter(names.STEP_TOKEN_COUNT)
        self._stood_out = telemetry.counter(names.STOOD_OUT)
        self._dropped = telemetry.counter(names.DROPPED_DRAFTS)
        self._untraced = telemetry.counter(names.STEPS_UNTRACED)
        self._waiting: deque[tuple[Worker, StepRecord]] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="step-tracer", daemon=True)
        self._thread.start()

    def on_step(self, role: Worker) -> OnStep:
        """What the core of this role tells its steps; costs the engine thread an append."""
        self._show(role)
        return partial(self._take, role)

    def watch(self, progress: Mapping[Worker, Callable[[], Progress]]) -> None:
        """Show sessions, queues and KV as gauges, read from `progress` when collected.

        Roles of one process share an engine, and so its KV.
        """
        gauge = self._telemetry.gauge
        engine = next(iter(progress.values()))
        gauge(names.SESSIONS, lambda: [(read().sessions, (r,)) for r, read in progress.items()])
        gauge(
            names.QUEUED_TOKENS,
            lambda: [(read().queued_tokens, (r,)) for r, read in progress.items()],
        )
        if (drafter := progress.get("drafter")) is not None:
            copied = names.COPIED_PROMPT_TOKENS
            self._telemetry.total(copied, lambda: [(drafter().copied_tokens, ())])
        gauge(names.KV_USED, lambda: [(engine().kv_tokens_used, ())])
        gauge(names.KV_SPARE, lambda: [(engine().kv_tokens_spare, ())])
        gauge(names.KV_CAPACITY, lambda: [(engine().kv_tokens_capacity, ())])

    def on_preempt(self) -> Callable[[], None]:
        """What the verifier's core tells of sessions that gave their K/V up."""
        preemptions = self._telemetry.counter(names.PREEMPTIONS)
        return lambda: preemptions.add(1)

    def on_states(self, role: Worker) -> OnStates:
        """What the core of this role, and its links, tell of the target's states."""
        counted = self._telemetry.counter(names.STATE_BYTES, [(role, fate.value) for fate in Fate])
        return lambda fate, size: counted.add(size, role, fate.value)

    def on_choices(self, model: str, dtype: str) -> OnChoices:
        """What the verifier's core tells of the tokens that this model chose."""
        rows = [(model, dtype, mode.name.lower()) for mode in VerifyMode if mode.exact_match]
        chosen = self._telemetry.counter(names.CHOSEN, rows)
        near_ties = self._telemetry.counter(names.NEAR_TIE_COUNT, rows)

        def count(mode: str, tokens: int, near: int) -> None:
            chosen.add(tokens, model, dtype, mode)
            near_ties.add(near, model, dtype, mode)

        return count

    def close(self, timeout: float = 1.0) -> None:
        """Record what waits, then stop; call it before the telemetry's shutdown."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout)

    def _take(self, role: Worker, record: StepRecord) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._untraced.add(1)
            return
        self._waiting.append((role, record))
        if not self._wake.is_set():
            self._wake.set()

    def _show(self, role: Worker) -> None:
        """A series that began with its first event would hide that event from `rate`."""
        self._seconds.show(role)
        self._sessions.show(role)
        for kind in _KINDS[role]:
            self._tokens.add(0, role, kind)
        if role == "verifier":
            for reason in names.WAITS:
                self._stood_out.add(0, reason)
            for why in names.DROPS:
                self._dropped.add(0, why)

    # --- in the telemetry thread -------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(_TOGETHER_SECONDS)
            self._wake.clear()
            while self._waiting:
                self._record(*self._waiting.popleft())

    def _record(self, role: Worker, record: StepRecord) -> None:
        self._seconds.record((record.ended_ns - record.started_ns) / 1e9, role)
        self._sessions.record(len(record.entries), role)
        for entry in record.entries:
            if entry.kind == "verify":
                self._waits.record(entry.queue_ms / 1e3)
            self._tokens.add(entry.tokens, role, entry.kind)
        for reason, count in zip(names.WAITS, record.stood_out, strict=False):
            self._stood_out.add(count, reason)
        for why, count in record.dropped.items():
            self._dropped.add(count, why)
        members = [(e, parent) for e in record.entries if (parent := _sampled_parent(e))]
        if members and self._children is not None:
            self._trace(self._children, _BATCH_SPANS[role], record, members)

    def _trace(
        self,
        children: ChildSpans,
        name: names.SpanName,
        record: StepRecord,
        members: list[tuple[StepEntry, SpanContext]],
    ) -> None:
        batch = sampled_root()
        start, end = record.started_ns, record.ended_ns
        tokens = sum(entry.tokens for entry in record.entries)
        size = len(record.entries)
        about: dict[str, AttributeValue] = {names.STEP_SIZE: size, names.STEP_TOKENS: tokens}
        links = [parent for _, parent in members]
        children.emit(name, batch, None, start, end, about, links=links)
        for entry, parent in members:
            about = {
                names.STEP_TOKENS: entry.tokens,
                names.STEP_QUEUE_MS: entry.queue_ms,
                names.STEP_SIZE: size,
            }
            member, place = _MEMBER_SPANS[entry.kind], child_of(parent)
            back = (batch,)
            children.emit(member, place, parent, start, end, about, kind="server", links=back)


def _sampled_parent(entry: StepEntry) -> SpanContext | None:
    """The span that an entry belongs to, if its trace is taken."""
    # The sampled flag is the lowest bit of the last field: most entries end here.
    if entry.traceparent[-1:] not in _SAMPLED:
        return None
    parent = span_context(parent_context(entry.traceparent))
    if not parent.is_valid:
        return None
    return verifying_of(parent, entry.opening, entry.position) if entry.opening else parent


_SAMPLED = frozenset("13579bdf")
