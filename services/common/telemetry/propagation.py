"""W3C Trace Context, level 2, as it travels in our messages: the `traceparent` string."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN_CONTEXT, SpanContext
from opentelemetry.trace.propagation import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()


def format_traceparent(context: SpanContext) -> str:
    """The header of a span context; empty for an invalid one."""
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent_context(traceparent: str, tracestate: str = "") -> Context:
    """The context of a remote parent; an empty one if the header is missing or malformed."""
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    return _PROPAGATOR.extract(carrier, Context())


def span_context(context: Context) -> SpanContext:
    """The span context in `context`, or the invalid one."""
    span = get_current_span(context)
    return span.get_span_context() or INVALID_SPAN_CONTEXT
