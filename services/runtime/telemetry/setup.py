"""Telemetry of one process: a tracer, a meter, and `/metrics` for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry

from services.contract.errors import StartError
from services.runtime.telemetry import names
from services.runtime.telemetry.buckets import Buckets, ScrapedReader, SentReader
from services.runtime.telemetry.children import ChildSpans
from services.runtime.telemetry.exporting import hush, span_processor, wants_otlp
from services.runtime.telemetry.instruments import Reading, Tally, observing
from services.runtime.telemetry.page import Contexts, Page

_SCOPE = InstrumentationScope("paceline")


class Telemetry:
    """What a process traces and counts with. Made by `start`, ended by `shutdown`.

    `tracer` starts the spans that sampling decides on; `children` takes those below
    them, and is None when no trace leaves the process.
    """

    def __init__(self, resource: Resource, *, traces: bool, metrics: bool) -> None:
        """`traces` and `metrics`: whether they go to a collector."""
        self._registry = CollectorRegistry()
        self._readers: list[ScrapedReader | SentReader] = [
            ScrapedReader(_SCOPE, scope_info_enabled=False, registry=self._registry)
        ]
        if traces or metrics:
            hush()
        if metrics:
            self._readers.append(SentReader(_SCOPE, OTLPMetricExporter()))
        meters = MeterProvider(self._readers, resource, shutdown_on_exit=False)
        self._meter = meters.get_meter(_SCOPE.name)
        self._page: Page | None = None
        self._sender = OTLPSpanExporter() if traces else None
        self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracer: Tracer = NoOpTracer()
        self.children: ChildSpans | None = None
        if self._sender is not None:
            processor = span_processor(self._sender)
            self._spans.add_span_processor(processor)
            self.tracer = self._spans.get_tracer(_SCOPE.name)
            self.children = ChildSpans(processor, resource, _SCOPE)
        self._stopped = False

    @classmethod
    def start(
        cls,
        role: str,
        worker_id: str = "",
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        metrics_tls: Contexts | None = None,
    ) -> Telemetry:
        """Begin. Reads the standard `OTEL_*` variables, which say what is exported where.

        `metrics_port`: 0 picks a free one, None serves no `/metrics`. `metrics_tls` is
        asked at each connection to it; None serves it in plaintext. Raises
        StartError for a port that is taken or a variable we cannot satisfy.
        """
        about = {
            names.SERVICE_NAME: f"paceline-{role}",
            names.SERVICE_INSTANCE: worker_id,
            names.SERVICE_VERSION: version("paceline"),
            names.ROLE: role,
        }
        resource = Resource.create({name: value for name, value in about.items() if value})
        traces, metrics = wants_otlp("traces"), wants_otlp("metrics")
        telemetry = cls(resource, traces=traces, metrics=metrics)
        if metrics_port is not None:
            telemetry._serve(metrics_host, metrics_port, metrics_tls)
        return telemetry

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT of `/metrics`, or None."""
        return self._page.address if self._page else None

    def counter(self, metric: names.Metric, rows: Sequence[tuple[str, ...]] = ()) -> Tally:
        """A counter to add to; `rows` are label values to show from the start."""
        tally = Tally(metric, rows)
        self.total(metric, tally.read)
        return tally

    def total(self, metric: names.Metric, read: Reading) -> None:
        """A counter that is kept elsewhere; it is read as a gauge is."""
        self._meter.create_observable_counter(
            metric.name, [observing(metric, read)], metric.unit, metric.help
        )

    def gauge(self, metric: names.Metric, read: Reading) -> None:
        """A gauge that is read when somebody collects it, in the collecting thread."""
        self._meter.create_observable_gauge(
            metric.name, [observing(metric, read)], metric.unit, metric.help
        )

    def histogram(self, metric: names.Metric, rows: Sequence[tuple[str, ...]] = ()) -> Buckets:
        """A histogram to record in; `rows` are label values to show from the start."""
        buckets = Buckets(metric, rows)
        for reader in self._readers:
            reader.add(buckets)
        return buckets

    def shutdown(self, timeout: float = 2.0) -> None:
        """Send what is left and stop, within about `timeout` seconds. Blocks; idempotent."""
        if self._stopped:
            return
        self._stopped = True
        ends_at = time.monotonic() + timeout
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._sender is not None:
            self._stop_spans(self._sender, timeout)
        left_ms = 1e3 * max(0.1, ends_at - time.monotonic())
        for reader in self._readers:
            reader.shutdown(left_ms)

    def _stop_spans(self, sender: OTLPSpanExporter, timeout: float) -> None:
        # The SDK gives its thread half a minute, and takes no other time.
        stopping = threading.Thread(target=self._spans.shutdown, daemon=True)
        stopping.start()
        stopping.join(timeout)
        if stopping.is_alive():
            # Wakes the thread out of its pause between two tries.
            sender.shutdown()

    def _serve(self, host: str, port: int, tls: Contexts | None) -> None:
        try:
            self._page = Page(self._registry, host, port, tls)
        except OSError as error:
            self.shutdown(0.1)
            raise StartError(f"/metrics cannot be served at {host}:{port}: {error}") from error
