"""A verifier process: settings → engine → core → host → served, registered."""

from __future__ import annotations

from services.common.engine import Engine, ModelSpec, pin
from services.common.errors import StartError
from services.common.host import Emit, WorkerHost
from services.common.telemetry import StepTracer
from services.common.types import Role, VerifierCommand, VerifierEvent
from services.common.worker import installed_version, run_host, tracing
from services.verifier.core import VerifierCore, VerifierOptions
from services.verifier.settings import VerifierSettings


def run(settings: VerifierSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    with tracing(settings, Role.VERIFIER) as tracer:
        pin(settings.threads, settings.cpus)
        engine = Engine.load(_model_spec(settings))
        return run_host(settings, make_host(settings, engine, tracer), tracer, engine.bundle)


def make_host(
    settings: VerifierSettings, engine: Engine, tracer: StepTracer | None = None
) -> WorkerHost[VerifierCommand, VerifierEvent]:
    """The host of a core on `engine`, not started.

    Raises `StartError` for a distilled drafter: it knows only a part of the
    vocabulary, so it has no law to judge by.
    """
    if engine.head_ids is not None:
        raise StartError(f"target: {engine.model_id} is a distilled drafter, not a whole model")
    options = VerifierOptions(
        max_step_tokens=settings.max_step_tokens,
        target_step_ms=settings.target_step_ms,
        version=installed_version(),
        on_step=tracer.on_step if tracer is not None else None,
    )

    def make_core(emit: Emit) -> VerifierCore:
        return VerifierCore(engine, emit=emit, worker_id=settings.worker_id, options=options)

    return WorkerHost(make_core)


def _model_spec(settings: VerifierSettings) -> ModelSpec:
    return ModelSpec(
        model=settings.target,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        kv_capacity_tokens=settings.kv_capacity_tokens,
        max_context=settings.max_context,
        cache_dir=settings.cache_dir,
    )
