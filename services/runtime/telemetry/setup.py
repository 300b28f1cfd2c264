"""Telemetry of one process: a tracer, a meter, and `/metrics` for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracer, Tracer
from prometheus_client import CollectorRegistry

from services.contract.errors import StartError
from services.runtime.telemetry import names
from services.runtime.telemetry.buckets import Buckets, ScrapedReader, Shelf
from services.runtime.telemetry.children import ChildSpans, ProcessResource
from services.runtime.telemetry.exporting import (
    MetricPipe,
    SpanPipe,
    wants_otlp,
)
from services.runtime.telemetry.instruments import (
    Reading,
    Tally,
    register_counter,
    register_gauge,
    register_total,
)
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
        self._shelf = Shelf(_SCOPE)
        self._metrics = MetricPipe(self._shelf) if metrics else None
        readers: list[MetricReader] = [
            ScrapedReader(self._shelf, scope_info_enabled=False, registry=self._registry)
        ]
        readers += [self._metrics.reader] if self._metrics else []
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._meter = self._meters.get_meter(_SCOPE.name)
        self._page: Page | None = None
        self._spans = SpanPipe(resource.attributes, _SCOPE.name) if traces else None
        self.tracer: Tracer = NoOpTracer()
        self.children: ChildSpans | None = None
        if self._spans is not None:
            processor = self._spans.processor
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_span_processor(processor)
            self.tracer = provider.get_tracer(_SCOPE.name)
            self.children = ChildSpans(processor)

    @classmethod
    def start(
        cls,
        service_name: str,
        role: str,
        worker_id: str = "",
        *,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        metrics_tls: Contexts | None = None,
        version: str = "",
    ) -> Telemetry:
        """Begin. Reads the standard `OTEL_*` variables, which say what is exported where.

        `metrics_port`: 0 picks a free one, None serves no `/metrics`. `metrics_tls` is
        asked at each connection to it; None serves it in plaintext. Raises
        StartError for a port that is taken or a variable we cannot satisfy.
        """
        about = {
            names.SERVICE_NAME: service_name,
            names.SERVICE_INSTANCE: worker_id,
            names.SERVICE_VERSION: version,
            names.ROLE: role,
        }
        given = Resource.create({name: value for name, value in about.items() if value})
        resource = ProcessResource(dict(given.attributes))
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
        return register_counter(self._meter, metric, rows)

    def total(self, metric: names.Metric, read: Reading) -> None:
        """A counter that is kept elsewhere; it is read as a gauge is."""
        register_total(self._meter, metric, read)

    def gauge(self, metric: names.Metric, read: Reading) -> None:
        """A gauge that is read when somebody collects it, in the collecting thread."""
        register_gauge(self._meter, metric, read)

    def histogram(self, metric: names.Metric, rows: Sequence[tuple[str, ...]] = ()) -> Buckets:
        """A histogram to record in; `rows` are label values to show from the start."""
        buckets = self._shelf.add(metric)
        for labels in rows:
            buckets.show(*labels)
        return buckets

    def shutdown(self, timeout: float = 2.0) -> None:
        """Send what is left and stop, within about `timeout` seconds. Blocks; idempotent."""
        ends_at = time.monotonic() + timeout
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._spans is not None:
            self._spans.stop(timeout)
        self._stop_metrics(max(0.1, ends_at - time.monotonic()))
        self._spans = self._metrics = None

    def _stop_metrics(self, timeout: float) -> None:
        if self._metrics is None:
            return
        stopping = threading.Thread(
            target=self._meters.shutdown, args=(timeout * 1e3,), daemon=True
        )
        stopping.start()
        stopping.join(timeout)
        if stopping.is_alive():
            self._metrics.cut()

    def _serve(self, host: str, port: int, tls: Contexts | None) -> None:
        try:
            self._page = Page(self._registry, host, port, tls)
        except OSError as error:
            self.shutdown(0.1)
            raise StartError(f"/metrics cannot be served at {host}:{port}: {error}") from error
