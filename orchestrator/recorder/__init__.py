"""The one place where the orchestrator's rounds become spans and metrics."""

from orchestrator.recorder.recorder import Recorder
from orchestrator.recorder.resuming import Resuming
from orchestrator.recorder.workers import watch_memory

__all__ = ["Recorder", "Resuming", "watch_memory"]
