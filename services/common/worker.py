"""What the mains of all workers share: telemetry around, serving and announcing within."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from services.common import serving
from services.common.announcement import Announcement, AnnounceOptions, Entry
from services.common.serving import Served
from services.common.settings import WorkerSettings
from services.common.telemetry import StepTracer, Telemetry
from services.common.types import Role


def installed_version() -> str:
    """Paceline's version."""
    return version("paceline")


@contextmanager
def tracing(settings: WorkerSettings, role: Role) -> Iterator[StepTracer]:
    """Telemetry of a worker process, for as long as it lives.

    Begins a worker, so what could not be served is refused here, before weights are read.
    """
    serving.check_worker(settings.serving_options())
    telemetry = Telemetry.start(
        f"paceline-{role.value}",
        role.value,
        settings.worker_id,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
        metrics_tls=settings.metrics_contexts(),
        version=installed_version(),
    )
    tracer = StepTracer(telemetry)
    try:
        yield tracer
    finally:
        tracer.close()
        telemetry.shutdown()


def run_worker(settings: WorkerSettings, tracer: StepTracer, *roles: Served) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = an engine failed)."""
    return serving.run(_serve(settings, tracer, roles))


async def _serve(settings: WorkerSettings, tracer: StepTracer, roles: Sequence[Served]) -> int:
    options = AnnounceOptions(settings.redis, settings.advertise, settings.ready_file)
    entries = [Entry(role.description, role.host.progress) for role in roles]
    announcement = Announcement(options, entries)
    tracer.loop_lag.start()
    try:
        return await serving.serve_worker(
            settings.serving_options(),
            *roles,
            on_ready=announcement.publish,
            on_drain=announcement.withdraw,
        )
    finally:
        tracer.loop_lag.stop()
        await announcement.withdraw()
