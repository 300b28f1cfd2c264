"""The one place where the orchestrator's rounds become spans and metrics."""

from orchestrator.recorder.recorder import Recorder

__all__ = ["Recorder"]
