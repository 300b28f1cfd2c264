"""A drafter process: settings → methods → core → host → served, registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from services.common import serving
from services.common.announcement import Announcement, AnnounceOptions
from services.common.host import Emit, WorkerHost
from services.common.serving import ServingOptions, TlsFiles
from services.common.telemetry import StepTracer, Telemetry
from services.common.types import DrafterCommand, DrafterEvent
from services.drafter.core import DrafterCore
from services.drafter.registry import build
from services.drafter.settings import DrafterSettings


def run(settings: DrafterSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    Raises `StartError` when it cannot start.
    """
    with _tracing(settings) as tracer:
        host = make_host(settings, tracer)
        tracer.watch(host.progress)
        return serving.run(_serve(settings, host))


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
            version=version("paceline"),
            max_window=settings.max_window,
            on_step=tracer.on_step if tracer is not None else None,
        )

    return WorkerHost(make_core)


async def _serve(settings: DrafterSettings, host: WorkerHost[DrafterCommand, DrafterEvent]) -> int:
    options = AnnounceOptions(settings.redis, settings.advertise, settings.ready_file)
    announcement = Announcement(options, host.describe(), host.progress)
    try:
        return await serving.serve_worker(
            _serving_options(settings),
            host,
            host.describe(),
            on_ready=announcement.publish,
            on_drain=announcement.withdraw,
        )
    finally:
        await announcement.withdraw()


@contextmanager
def _tracing(settings: DrafterSettings) -> Iterator[StepTracer]:
    telemetry = Telemetry.start(
        "paceline-drafter",
        "drafter",
        settings.worker_id,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
    )
    tracer = StepTracer(telemetry, "drafter")
    try:
        yield tracer
    finally:
        tracer.close()
        telemetry.shutdown()


def _serving_options(settings: DrafterSettings) -> ServingOptions:
    tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
    return ServingOptions(
        address=f"{settings.host}:{settings.port}",
        insecure=settings.insecure,
        tls=tls if settings.tls_cert is not None else None,
        grace=settings.grace,
    )
