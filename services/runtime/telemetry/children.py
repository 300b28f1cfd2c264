"""Finished spans below a sampled one, at a fraction of the Tracer API's cost.

A trace is sampled once, at its root; below it there is nothing left to sample, lock or
limit. So a child span is created when it has ended, from ids given out when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.util.types import AttributeValue

from services.runtime.telemetry.names import SpanName

_NOTHING: Mapping[str, AttributeValue] = {}
_IDS = RandomIdGenerator()


class ProcessResource(Resource):
    """A resource that is hashed by identity: the exporter hashes it for every span."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def child_of(parent: SpanContext) -> SpanContext:
    """A new place in the trace of `parent`."""
    return SpanContext(
        parent.trace_id,
        _IDS.generate_span_id(),
        is_remote=False,
        trace_flags=parent.trace_flags,
        trace_state=parent.trace_state,
    )


def sampled_root() -> SpanContext:
    """The place of the first span of a new trace, which is taken."""
    return SpanContext(
        _IDS.generate_trace_id(),
        _IDS.generate_span_id(),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


@dataclass(frozen=True, slots=True)
class ChildSpan:
    """A finished span; times are Unix nanoseconds."""

    context: SpanContext
    parent: SpanContext | None
    name: str
    kind: str
    start_ns: int
    end_ns: int
    about: Mapping[str, AttributeValue]
    links: Sequence[SpanContext]


class ChildSpans:
    """Hands finished spans to the exporter. Thread-safe; never blocks."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._put: Callable[[Any], None] = processor.on_end

    def emit(
        self,
        name: SpanName,
        place: SpanContext,
        parent: SpanContext | None,
        start_ns: int,
        end_ns: int,
        about: Mapping[str, AttributeValue] = _NOTHING,
        *,
        kind: str = "",
        links: Sequence[SpanContext] = (),
    ) -> None:
        """A span that has ended. `kind` if not the name's own; links to other spans."""
        kind = kind or name.kind
        self._put(ChildSpan(place, parent, name.name, kind, start_ns, end_ns, about, links))
