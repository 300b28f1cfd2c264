"""Where telemetry goes, as the standard `OTEL_*` variables say.

Nothing is exported unless asked for: by `OTEL_TRACES_EXPORTER=otlp` (or
`OTEL_METRICS_EXPORTER`), or by an endpoint in `OTEL_EXPORTER_OTLP_ENDPOINT` (or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `…_METRICS_ENDPOINT`). Only the exporters'
own threads wait for a collector that does not answer, and the log mentions it once.
"""

from __future__ import annotations

import logging
import os
import time

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from services.contract.errors import StartError

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


def span_processor(exporter: SpanExporter) -> BatchSpanProcessor:
    """What `exporter` sends spans from: a bounded queue, `OTEL_BSP_*` says how long."""
    given = _BATCH_VARIABLE in os.environ
    return BatchSpanProcessor(exporter, max_export_batch_size=None if given else _BATCH_SIZE)


def hush() -> None:
    """Let exporters say one line in ten minutes: they complain at every batch."""
    for name in _NOISY:
        logging.getLogger(name).addFilter(_QUIET)


_NOISY = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.sdk._shared_internal",
)


class _OneLine(logging.Filter):
    """Lets one line through per logger and pause."""

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
