"""Histograms that cost a bisection, handed to the readers at collection time.

OpenTelemetry's own takes about 7 µs a value, and a round has five. It has observable
counters but no observable histogram, so our readers put these beside what the SDK gives.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from services.runtime.telemetry.names import Metric


class _Row:
    """The values under one set of label values."""

    __slots__ = ("counts", "high", "low", "total")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        self.total = 0.0
        self.low, self.high = math.inf, -math.inf


class Buckets:
    """A histogram since its making. One thread records; any may read."""

    def __init__(self, metric: Metric) -> None:
        self._metric, self._bounds = metric, metric.buckets
        self._began = time.time_ns()
        self._rows: dict[tuple[str, ...], _Row] = {}
        if not metric.labels:
            self._row(())

    def show(self, *labels: str) -> None:
        """Have these label values from now on, with nothing counted yet."""
        if labels not in self._rows:
            self._row(labels)

    def record(self, value: float, *labels: str) -> None:
        """Count a value under these label values."""
        row = self._rows.get(labels) or self._row(labels)
        row.counts[bisect_left(self._bounds, value)] += 1
        row.total += value
        if value < row.low:
            row.low = value
        if value > row.high:
            row.high = value

    def _row(self, labels: tuple[str, ...]) -> _Row:
        return self._rows.setdefault(labels, _Row(len(self._bounds)))

    def read(self) -> export.Metric:
        """All values so far, in the SDK's terms."""
        metric, now = self._metric, time.time_ns()
        points = [self._point(labels, row, now) for labels, row in self._rows.copy().items()]
        data = export.Histogram(points, AggregationTemporality.CUMULATIVE)
        return export.Metric(metric.name, metric.help, metric.unit, data)

    def _point(self, labels: tuple[str, ...], row: _Row, now: int) -> HistogramDataPoint:
        counts = row.counts.copy()
        count = sum(counts)
        return HistogramDataPoint(
            attributes=dict(zip(self._metric.labels, labels, strict=True)),
            start_time_unix_nano=self._began,
            time_unix_nano=now,
            count=count,
            sum=row.total,
            bucket_counts=counts,
            explicit_bounds=self._bounds,
            min=row.low if count else 0.0,
            max=row.high if count else 0.0,
        )


class Shelf:
    """All `Buckets` of a process; its readers add them to what they are given."""

    def __init__(self, scope: InstrumentationScope) -> None:
        self._scope = scope
        self._all: list[Buckets] = []

    def add(self, metric: Metric) -> Buckets:
        """A new histogram."""
        self._all.append(Buckets(metric))
        return self._all[-1]

    def beside(self, data: MetricsData) -> MetricsData:
        """`data` with the histograms among the metrics of our scope."""
        ours = [buckets.read() for buckets in self._all]
        return MetricsData([self._with(resource, ours) for resource in data.resource_metrics])

    def _with(self, resource: ResourceMetrics, ours: Sequence[export.Metric]) -> ResourceMetrics:
        # A second entry of one scope would replace the first when it is encoded.
        scopes = [
            ScopeMetrics(scope.scope, [*scope.metrics, *ours], scope.schema_url)
            if scope.scope == self._scope
            else scope
            for scope in resource.scope_metrics
        ]
        return ResourceMetrics(resource.resource, scopes, resource.schema_url)


class ScrapedReader(PrometheusMetricReader):
    """What Prometheus reads."""

    def __init__(self, shelf: Shelf, **options: Any) -> None:
        self._shelf = shelf
        super().__init__(**options)

    def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **options: Any) -> None:
        super()._receive_metrics(self._shelf.beside(metrics_data), *args, **options)


class SentReader(PeriodicExportingMetricReader):
    """What goes to a collector, every `OTEL_METRIC_EXPORT_INTERVAL`."""

    def __init__(self, shelf: Shelf, exporter: export.MetricExporter) -> None:
        self._shelf = shelf
        super().__init__(exporter)

    def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **options: Any) -> None:
        super()._receive_metrics(self._shelf.beside(metrics_data), *args, **options)
