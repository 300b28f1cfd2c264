"""Where telemetry goes, as the standard `OTEL_*` variables say.

Nothing is exported unless asked for: by `OTEL_TRACES_EXPORTER=otlp` (or
`OTEL_METRICS_EXPORTER`), or by an endpoint in `OTEL_EXPORTER_OTLP_ENDPOINT` (or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `…_METRICS_ENDPOINT`). Only the exporters'
own threads wait for a collector that does not answer, and the log mentions it once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.util.types import AttributeValue

from services.contract.errors import StartError
from services.runtime.telemetry.buckets import SentReader, Shelf
from services.runtime.telemetry.encoding import ChildExporter

# A batch is encoded with the interpreter lock held: small ones delay no token.
_BATCH_VARIABLE, _BATCH_SIZE = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 128


def disabled() -> bool:
    """Whether `OTEL_SDK_DISABLED` says so."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def wants_otlp(signal: str) -> bool:
    """Whether `signal` ("traces" or "metrics") goes to a collector.

    Raises StartError when the environment asks for what we do not have.
    """
    if disabled():
        return False
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    chosen = os.environ.get(variable, "").strip().lower()
    if chosen not in ("", "otlp", "none"):
        raise StartError(f"{variable}: {chosen!r} is not allowed: give otlp or none")
    if chosen == "none" or (not chosen and not _endpoint(signal)):
        return False
    _check_protocol(signal)
    return True


def _endpoint(signal: str) -> str:
    return _either("ENDPOINT", signal)[1]


def _check_protocol(signal: str) -> None:
    variable, protocol = _either("PROTOCOL", signal)
    if protocol not in ("", "grpc"):
        raise StartError(f"{variable}: {protocol!r} is not allowed: telemetry leaves by grpc")


def _either(option: str, signal: str) -> tuple[str, str]:
    """The signal's own variable if set, else the general one; with its value."""
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{option}"
    name = own if os.environ.get(own) else f"OTEL_EXPORTER_OTLP_{option}"
    return name, os.environ.get(name, "").strip()


class SpanPipe:
    """Spans on their way to the collector."""

    def __init__(self, about: Mapping[str, AttributeValue], scope: str) -> None:
        """`about` are the attributes of the process."""
        for name in _NOISY:
            logging.getLogger(name).addFilter(_QUIET)
        self._exporter = ChildExporter(about, scope)
        given = _BATCH_VARIABLE in os.environ
        self.processor = BatchSpanProcessor(
            self._exporter, max_export_batch_size=None if given else _BATCH_SIZE
        )

    def stop(self, timeout: float) -> None:
        """Send what is left; give up after `timeout` seconds."""
        sending = threading.Thread(target=self.processor.shutdown, daemon=True)
        sending.start()
        sending.join(timeout)
        if sending.is_alive():
            # Wakes the sender out of its pause between two tries.
            self._exporter.shutdown()


class MetricPipe:
    """Metrics on their way to the collector."""

    def __init__(self, shelf: Shelf) -> None:
        for name in _NOISY:
            logging.getLogger(name).addFilter(_QUIET)
        self._exporter = OTLPMetricExporter()
        self.reader = SentReader(shelf, self._exporter)

    def cut(self) -> None:
        """Wake the sender out of its pause between two tries, to give up."""
        self._exporter.shutdown()


_NOISY = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)


class _OneLine(logging.Filter):
    """Lets one line through per logger and ten minutes: exporters complain at every batch."""

    def __init__(self, pause: float = 600.0) -> None:
        super().__init__()
        self._pause = pause
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is logged."""
        now = time.monotonic()
        due = now >= self._next.get(record.name, now)
        if due:
            self._next[record.name] = now + self._pause
        return due


_QUIET = _OneLine()
