"""The one place where the orchestrator's rounds become spans and metrics."""

from orchestrator.recorder.meters import watch_memory
from orchestrator.recorder.recorder import Recorder
from orchestrator.recorder.resuming import Resuming

__all__ = ["Recorder", "Resuming", "watch_memory"]
