"""Child spans as OTLP messages, at a third of the SDK's cost per span.

It runs in the exporter's thread but holds the interpreter lock, so its time delays
tokens. A child has no events, state or limits, and few attribute values, whose
encodings are cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from services.runtime.telemetry.children import ChildSpan

_KINDS = {
    "internal": Span.SPAN_KIND_INTERNAL,
    "client": Span.SPAN_KIND_CLIENT,
    "server": Span.SPAN_KIND_SERVER,
}
_LOCAL = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_REMOTE = _LOCAL | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)


class ChildExporter(OTLPSpanExporter):
    """Sends the SDK's spans and ours, of one resource and scope."""

    def __init__(self, about: Mapping[str, AttributeValue], scope: str) -> None:
        """`about` are the resource's attributes; the endpoint comes from `OTEL_*`."""
        super().__init__()
        self._about = Resource(attributes=_pairs(about))
        self._scope = InstrumentationScope(name=scope)

    def _translate_data(
        self, data: Sequence[ReadableSpan | ChildSpan]
    ) -> ExportTraceServiceRequest:
        theirs = [span for span in data if isinstance(span, ReadableSpan)]
        request = super()._translate_data(theirs)
        ours = [encode(span) for span in data if isinstance(span, ChildSpan)]
        if ours:
            spans = ScopeSpans(scope=self._scope, spans=ours)
            whole = ResourceSpans(resource=self._about, scope_spans=[spans])
            request.resource_spans.append(whole)
        return request


def encode(span: ChildSpan) -> Span:
    """One span."""
    context, parent = span.context, span.parent
    return Span(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        trace_state=context.trace_state.to_header(),
        parent_span_id=parent.span_id.to_bytes(8, "big") if parent else b"",
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_pairs(span.about),
        links=[_link(context) for context in span.links],
        flags=_flags(parent),
    )


def _link(context: SpanContext) -> Span.Link:
    return Span.Link(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        flags=_flags(context),
    )


def _flags(context: SpanContext | None) -> int:
    return _REMOTE if context is not None and context.is_remote else _LOCAL


def _pairs(about: Mapping[str, AttributeValue]) -> Iterable[KeyValue]:
    # Measured floats do not come again.
    return [
        _pair(key, value) if isinstance(value, float) else _seen(key, value)
        for key, value in about.items()
    ]


def _pair(key: str, value: AttributeValue) -> KeyValue:
    return KeyValue(key=key, value=_value(value))


_seen = lru_cache(maxsize=4096, typed=True)(_pair)


def _value(value: Any) -> AnyValue:
    match value:
        case str():
            return AnyValue(string_value=value)
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=map(_value, value)))
