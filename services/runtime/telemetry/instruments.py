"""Counters and gauges that cost a dictionary update, read when somebody collects them.

A synchronous OpenTelemetry counter costs about 6 µs a call; a round would need a dozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from services.runtime.telemetry.names import Metric

Reading = Callable[[], Iterable[tuple[float, tuple[str, ...]]]]
"""Gives (value, label values in the order of the metric's labels)."""


class Tally:
    """A counter. One thread adds; any may read."""

    def __init__(self, metric: Metric, rows: Sequence[tuple[str, ...]] = ()) -> None:
        """`rows` are label values to show from the start, at 0."""
        shown = rows if metric.labels else [()]
        self._values: dict[tuple[str, ...], float] = dict.fromkeys(shown, 0)

    def add(self, amount: float, *labels: str) -> None:
        """Count `amount` more under these label values."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def read(self) -> Iterable[tuple[float, tuple[str, ...]]]:
        """The totals so far."""
        return [(value, labels) for labels, value in self._values.copy().items()]


def register_counter(meter: Meter, metric: Metric, rows: Sequence[tuple[str, ...]] = ()) -> Tally:
    """A new counter that `meter` collects."""
    tally = Tally(metric, rows)
    register_total(meter, metric, tally.read)
    return tally


def register_total(meter: Meter, metric: Metric, read: Reading) -> None:
    """A counter that is kept elsewhere, and `read` in the collecting thread."""
    meter.create_observable_counter(
        metric.name, [_callback(metric, read)], metric.unit, metric.help
    )


def register_gauge(meter: Meter, metric: Metric, read: Reading) -> None:
    """A gauge whose value is `read` in the collecting thread."""
    meter.create_observable_gauge(metric.name, [_callback(metric, read)], metric.unit, metric.help)


def _callback(metric: Metric, read: Reading) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        for value, labels in read():
            yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

    return observe
