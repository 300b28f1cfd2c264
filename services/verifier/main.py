"""A verifier process: settings → engine → core → host → served, registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from services.common import serving
from services.common.announcement import Announcement, AnnounceOptions
from services.common.engine import Engine, ModelSpec, pin
from services.common.host import Emit, WorkerHost
from services.common.serving import ServingOptions, TlsFiles
from services.common.telemetry import StepTracer, Telemetry
from services.common.types import VerifierCommand, VerifierEvent
from services.verifier.core import VerifierCore, VerifierOptions
from services.verifier.settings import VerifierSettings


def run(settings: VerifierSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    with _tracing(settings) as tracer:
        pin(settings.threads, settings.cpus)
        engine = Engine.load(_model_spec(settings))
        host = make_host(settings, engine, tracer)
        tracer.watch(host.progress)
        return serving.run(_serve(settings, host, engine))


def make_host(
    settings: VerifierSettings, engine: Engine, tracer: StepTracer | None = None
) -> WorkerHost[VerifierCommand, VerifierEvent]:
    """The host of a core on `engine`, not started."""
    options = VerifierOptions(
        max_step_tokens=settings.max_step_tokens,
        target_step_ms=settings.target_step_ms,
        version=version("paceline"),
        on_step=tracer.on_step if tracer is not None else None,
    )

    def make_core(emit: Emit) -> VerifierCore:
        return VerifierCore(engine, emit=emit, worker_id=settings.worker_id, options=options)

    return WorkerHost(make_core)


async def _serve(
    settings: VerifierSettings,
    host: WorkerHost[VerifierCommand, VerifierEvent],
    engine: Engine,
) -> int:
    options = AnnounceOptions(settings.redis, settings.advertise, settings.ready_file)
    announcement = Announcement(options, host.describe(), host.progress)
    try:
        return await serving.serve_worker(
            _serving_options(settings),
            host,
            host.describe(),
            engine.bundle,
            on_ready=announcement.publish,
            on_drain=announcement.withdraw,
        )
    finally:
        await announcement.withdraw()


@contextmanager
def _tracing(settings: VerifierSettings) -> Iterator[StepTracer]:
    telemetry = Telemetry.start(
        "paceline-verifier",
        "verifier",
        settings.worker_id,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
    )
    tracer = StepTracer(telemetry, "verifier")
    try:
        yield tracer
    finally:
        tracer.close()
        telemetry.shutdown()


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


def _serving_options(settings: VerifierSettings) -> ServingOptions:
    tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
    return ServingOptions(
        address=f"{settings.host}:{settings.port}",
        insecure=settings.insecure,
        tls=tls if settings.tls_cert is not None else None,
        grace=settings.grace,
    )
