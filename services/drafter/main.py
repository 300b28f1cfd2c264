"""A drafter process: settings → methods → core → host → served, registered."""

from __future__ import annotations

from services.common.host import Emit, WorkerHost
from services.common.telemetry import StepTracer
from services.common.types import DrafterCommand, DrafterEvent, Role
from services.common.worker import installed_version, run_host, tracing
from services.drafter.core import DrafterCore
from services.drafter.registry import build
from services.drafter.settings import DrafterSettings


def run(settings: DrafterSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    with tracing(settings, Role.DRAFTER) as tracer:
        return run_host(settings, make_host(settings, tracer), tracer)


def make_host(
    settings: DrafterSettings, tracer: StepTracer | None = None
) -> WorkerHost[DrafterCommand, DrafterEvent]:
    """The host of a core with the methods of the settings, not started."""
    drafters = build(settings)

    def make_core(emit: Emit) -> DrafterCore:
        return DrafterCore(
            drafters,
            emit=emit,
            worker_id=settings.worker_id,
            version=installed_version(),
            max_window=settings.max_window,
            on_step=tracer.on_step if tracer is not None else None,
        )

    return WorkerHost(make_core)
