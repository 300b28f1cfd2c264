"""OpenTelemetry, set up once per process; all names in `names`."""

from services.common.telemetry.instruments import Reading, Tally
from services.common.telemetry.propagation import trace_ids
from services.common.telemetry.setup import Telemetry
from services.common.telemetry.steps import StepTracer

__all__ = ["Reading", "StepTracer", "Tally", "Telemetry", "trace_ids"]
