"""Finished spans below a sampled one, which the SDK's processor and exporter take as its own.

A trace is sampled once, at its root; below it there is nothing left to sample, lock or
limit. So a child span is created when it has ended, from ids given out when it began: its
place is told to workers before the times that it began and ended at are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.util.types import AttributeValue

from services.runtime.telemetry.names import SpanName

_NOTHING: Mapping[str, AttributeValue] = {}
_IDS = RandomIdGenerator()
_KINDS = {kind.name.lower(): kind for kind in SpanKind}


def child_of(parent: SpanContext) -> SpanContext:
    """A new place in the trace of `parent`."""
    return SpanContext(
        parent.trace_id,
        _IDS.generate_span_id(),
        is_remote=False,
        trace_flags=parent.trace_flags,
        trace_state=parent.trace_state,
    )


def round_of(root: SpanContext, opening: int, position: int) -> SpanContext:
    """The place of a round below its session's span.

    It follows from which opening on a verifier it was of, and the tokens of the output before it:
    so every process knows it without being told.
    """
    return _derived(root, opening, position, b"round")


def verifying_of(root: SpanContext, opening: int, position: int) -> SpanContext:
    """The place of that round's verifying, below which a verifier tells of its own work."""
    return _derived(root, opening, position, b"verify")


def _derived(root: SpanContext, opening: int, position: int, part: bytes) -> SpanContext:
    said = root.trace_id.to_bytes(16) + root.span_id.to_bytes(8)
    said += opening.to_bytes(4) + position.to_bytes(4) + part
    return SpanContext(
        root.trace_id,
        int.from_bytes(blake2b(said, digest_size=8).digest()) or 1,
        is_remote=False,
        trace_flags=root.trace_flags,
        trace_state=root.trace_state,
    )


def sampled_root() -> SpanContext:
    """The place of the first span of a new trace, which is taken."""
    return SpanContext(
        _IDS.generate_trace_id(),
        _IDS.generate_span_id(),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


class ChildSpans:
    """Hands finished spans to the exporter. Thread-safe; never blocks."""

    def __init__(
        self, processor: SpanProcessor, resource: Resource, scope: InstrumentationScope
    ) -> None:
        self._processor, self._resource, self._scope = processor, resource, scope

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
        """A span that has ended, in Unix nanoseconds. `kind` if not the name's own."""
        span = ReadableSpan(
            name.name,
            context=place,
            parent=parent,
            resource=self._resource,
            attributes=about,
            links=[Link(context) for context in links],
            kind=_KINDS[kind or name.kind],
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)
