"""W3C Trace Context, level 2, as it travels in our messages: the `traceparent` string."""

from __future__ import annotations

from collections.abc import Mapping

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


def parent_context(traceparent: str) -> Context:
    """The context of a remote parent; an empty one if the header is missing or malformed."""
    return _PROPAGATOR.extract({"traceparent": traceparent}, Context())


def span_context(context: Context) -> SpanContext:
    """The span context in `context`, or the invalid one."""
    span = get_current_span(context)
    return span.get_span_context() or INVALID_SPAN_CONTEXT


def trace_ids() -> Mapping[str, str]:
    """The ids of the current span for a log line; empty where there is none."""
    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
