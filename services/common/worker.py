"""What the mains of all workers share: telemetry around, serving and announcing within."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from services.common import serving
from services.common.announcement import Announcement, AnnounceOptions
from services.common.host import WorkerHost
from services.common.settings import WorkerSettings
from services.common.telemetry import StepTracer, Telemetry
from services.common.types import Role, TokenizerBundle


def installed_version() -> str:
    """Paceline's version."""
    return version("paceline")


@contextmanager
def tracing(settings: WorkerSettings, role: Role) -> Iterator[StepTracer]:
    """Telemetry of a worker process, for as long as it lives."""
    telemetry = Telemetry.start(
        f"paceline-{role.value}",
        role.value,
        settings.worker_id,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
        version=installed_version(),
    )
    tracer = StepTracer(telemetry, role.value)
    try:
        yield tracer
    finally:
        tracer.close()
        telemetry.shutdown()


def run_host(
    settings: WorkerSettings,
    host: WorkerHost[Any, Any],
    tracer: StepTracer,
    bundle: TokenizerBundle | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed)."""
    tracer.watch(host.progress)
    return serving.run(_serve(settings, host, bundle))


async def _serve(
    settings: WorkerSettings, host: WorkerHost[Any, Any], bundle: TokenizerBundle | None
) -> int:
    options = AnnounceOptions(settings.redis, settings.advertise, settings.ready_file)
    announcement = Announcement(options, host.describe(), host.progress)
    try:
        return await serving.serve_worker(
            settings.serving_options(),
            host,
            host.describe(),
            bundle,
            on_ready=announcement.publish,
            on_drain=announcement.withdraw,
        )
    finally:
        await announcement.withdraw()
