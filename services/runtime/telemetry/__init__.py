"""OpenTelemetry, set up once per process; all names in `names`."""

from services.runtime.telemetry.instruments import Reading, Tally
from services.runtime.telemetry.propagation import trace_ids
from services.runtime.telemetry.setup import Telemetry
from services.runtime.telemetry.steps import StepTracer

__all__ = ["Reading", "StepTracer", "Tally", "Telemetry", "trace_ids"]
