"""An OTLP/gRPC collector for tests: it keeps what it is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came over the wire; ids in hex, times in Unix nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    resource: dict[str, Any]
    error: str

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


@dataclass
class OtlpReceiver:
    """Use as a context manager; `environment` sends a process's telemetry here."""

    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)
    raw: list[bytes] = field(default_factory=list)

    def __enter__(self) -> OtlpReceiver:
        self._changed = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        trace_grpc.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        return [s for s in self.spans if (s.trace_id, s.parent_id) == parent.place]

    def wait_for(self, condition: Callable[[OtlpReceiver], bool], timeout: float = 60.0) -> bool:
        """Whether the condition comes true before the time is over."""
        ends_at = time.monotonic() + timeout
        with self._changed:
            while not condition(self):
                left = ends_at - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return condition(self)
        return True

    def take(self, add: Callable[[], None]) -> None:
        with self._changed:
            add()
            self._changed.notify_all()


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request, context):
        spans = [
            _span(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        self._receiver.raw.append(request.SerializeToString())
        self._receiver.take(lambda: self._receiver.spans.extend(spans))
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    def Export(self, request, context):
        names = {
            metric.name
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        self._receiver.raw.append(request.SerializeToString())
        self._receiver.take(lambda: self._receiver.metrics.update(names))
        return metrics_pb.ExportMetricsServiceResponse()


def _span(span: SpanProto, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        SpanProto.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        resource,
        span.status.message,
    )


def _values(attributes) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
