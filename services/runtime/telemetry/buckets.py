"""Histograms that are read when somebody collects them, as observable counters are.

The SDK has none of that kind. Its own has no series before the first value, and takes 4 to
7 µs for each of the five of a round, against 0.3; ours stand beside what it collects.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, cast

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
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

    def __init__(self, metric: Metric, rows: Sequence[tuple[str, ...]] = ()) -> None:
        """`rows` are label values to show from the start."""
        self._metric, self._bounds = metric, metric.buckets
        self._began = time.time_ns()
        self._rows: dict[tuple[str, ...], _Row] = {}
        for labels in rows if metric.labels else [()]:
            self.show(*labels)

    def show(self, *labels: str) -> _Row:
        """Have these label values from now on, with nothing counted yet."""
        return self._rows.setdefault(labels, _Row(len(self._bounds)))

    def record(self, value: float, *labels: str) -> None:
        """Count a value under these label values."""
        row = self._rows.get(labels) or self.show(*labels)
        row.counts[bisect_left(self._bounds, value)] += 1
        row.total += value
        if value < row.low:
            row.low = value
        if value > row.high:
            row.high = value

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


class _WithBuckets(MetricReader):
    """A reader that finds our histograms among the metrics of our scope."""

    def __init__(self, scope: InstrumentationScope, *args: Any, **options: Any) -> None:
        self._scope = scope
        self._all: list[Buckets] = []
        super().__init__(*args, **options)

    def add(self, buckets: Buckets) -> None:
        """Read this histogram, too."""
        self._all.append(buckets)

    def _receive_metrics(self, metrics_data: MetricsData, *args: Any, **options: Any) -> None:
        ours = [buckets.read() for buckets in self._all]
        for resource in metrics_data.resource_metrics:
            for scope in resource.scope_metrics:
                # A second entry of one scope would replace the first when it is encoded.
                if scope.scope == self._scope:
                    cast("list[export.Metric]", scope.metrics).extend(ours)
        super()._receive_metrics(metrics_data, *args, **options)  # type: ignore[safe-super]


class ScrapedReader(_WithBuckets, PrometheusMetricReader):
    """What Prometheus reads."""


class SentReader(_WithBuckets, PeriodicExportingMetricReader):
    """What goes to a collector, every `OTEL_METRIC_EXPORT_INTERVAL`."""
