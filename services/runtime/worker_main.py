"""What the mains of all workers share: telemetry around; loading, serving, announcing within."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from services.contract.types import Role
from services.runtime import serving
from services.runtime.affinity import keep_to
from services.runtime.atomic_file import write_line
from services.runtime.memory import returning_memory
from services.runtime.redis_client import checked_url
from services.runtime.registry import Registration
from services.runtime.serving import Health, Served
from services.runtime.settings import WorkerSettings
from services.runtime.telemetry import StepTracer, Telemetry


@contextmanager
def tracing(settings: WorkerSettings, role: Role) -> Iterator[StepTracer]:
    """Telemetry of a worker process, for as long as it lives.

    Begins a worker, so what could not be served is refused here, before weights are read.
    """
    serving.check_worker(settings.serving_options())
    telemetry = Telemetry.start(
        role.value,
        settings.worker_id,
        metrics_port=settings.metrics_port,
        metrics_host=settings.metrics_host,
        metrics_tls=settings.metrics_contexts(),
    )
    tracer = StepTracer(telemetry)
    try:
        yield tracer
    finally:
        tracer.close()
        telemetry.shutdown()


def run_worker(
    settings: WorkerSettings, tracer: StepTracer, load: Callable[[], Sequence[Served]]
) -> int:
    """Load, then serve until SIGTERM or SIGINT; the exit status (1 = an engine failed).

    `load` makes the roles in a thread of its own. Probes are answered from the start.
    """
    # Here, not where models are loaded: the cores' threads are started from this one.
    keep_to(settings.cpus)

    def loading() -> Sequence[Served]:
        with returning_memory():
            return load()

    return serving.run(_serve(settings, tracer, loading))


async def _serve(
    settings: WorkerSettings, tracer: StepTracer, load: Callable[[], Sequence[Served]]
) -> int:
    options, stop = settings.serving_options(), serving.stop_on_signals()
    if settings.redis is not None:
        # Now, not once a model is loaded.
        checked_url(settings.redis)
    async with Health(options) as health:
        roles = await serving.loaded(load, stop)
        await health.started()
        announcement = _Announcement(settings, roles)
        tracer.loop_lag.start()
        try:
            return await serving.serve_worker(
                options,
                *roles,
                on_ready=announcement.publish,
                on_drain=announcement.withdraw,
                stop=stop,
                health=health,
            )
        finally:
            tracer.loop_lag.stop()
            await announcement.withdraw()


class _Announcement:
    """Says that a worker serves: an entry in the registry for each role, and its ready file."""

    def __init__(self, settings: WorkerSettings, roles: Sequence[Served]) -> None:
        self._settings, self._roles = settings, roles
        self._registrations: list[Registration] = []

    async def publish(self, address: str) -> None:
        """Called once requests are served at `address`. Raises StartError."""
        settings = self._settings
        if settings.redis is not None:
            advertised = settings.advertise or address
            for role in self._roles:
                registration = Registration(
                    settings.redis,
                    role.description,
                    advertised,
                    role.host.progress,
                    zone=settings.zone,
                )
                await registration.start()
                self._registrations.append(registration)
        if settings.ready_file is not None:
            write_line(settings.ready_file, address)

    async def withdraw(self, _address: str = "") -> None:
        """No new sessions from now on; may be repeated."""
        for registration in self._registrations:
            await registration.stop()
