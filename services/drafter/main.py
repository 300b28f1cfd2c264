"""A drafter process: settings → methods → core → host → served, registered."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from services.contract.types import Role
from services.drafter.hypotheses import HypothesisCore
from services.drafter.local import LocalProposer
from services.drafter.protocol import Drafter
from services.drafter.registry import build
from services.drafter.settings import DrafterSettings
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from services.runtime.telemetry import StepTracer
from services.runtime.worker_main import run_worker, tracing


def run(settings: DrafterSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    with tracing(settings, Role.DRAFTER) as tracer:

        def load() -> list[Served]:
            host = make_host(settings, build(settings), tracer)
            tracer.watch({"drafter": host.progress})
            return [Served(host, host.describe())]

        return run_worker(settings, tracer, load)


def make_host(
    settings: DrafterSettings,
    drafters: Mapping[str, Drafter],
    tracer: StepTracer | None = None,
) -> WorkerHost[Any, Any]:
    """The host of a core with these methods, not started."""
    on_states = tracer.on_states("drafter") if tracer is not None else None
    return WorkerHost(
        lambda emit: HypothesisCore(
            drafters,
            emit=emit,
            worker_id=settings.worker_id,
            version=version("paceline"),
            max_window=settings.max_window,
            lengthen=settings.lengthen,
            on_step=tracer.on_step("drafter") if tracer is not None else None,
            on_states=on_states,
        ),
        on_states=on_states,
    )


def make_proposer(
    settings: DrafterSettings, drafters: Mapping[str, Drafter], tracer: StepTracer | None = None
) -> LocalProposer:
    """What drafts with these methods for a verifier in this process."""
    return LocalProposer(
        drafters,
        lengthen=settings.lengthen,
        on_step=tracer.on_step("drafter") if tracer is not None else None,
        on_states=tracer.on_states("drafter") if tracer is not None else None,
    )
