"""A drafter process: settings → methods → core → host → served, registered."""

from __future__ import annotations

from services.common import serving
from services.common.host import Emit, WorkerHost
from services.common.readyfile import write_line
from services.common.registry import Registration
from services.common.serving import ServingOptions, TlsFiles
from services.common.steps import OnStep
from services.common.types import DrafterCommand, DrafterEvent
from services.drafter.core import DrafterCore
from services.drafter.registry import build
from services.drafter.settings import DrafterSettings


def run(settings: DrafterSettings, on_step: OnStep | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit status (1 = the engine failed).

    `on_step` is called in the core's thread. Raises `StartError` when it cannot start.
    """
    drafters = build(settings)

    def make_core(emit: Emit) -> DrafterCore:
        return DrafterCore(
            drafters,
            emit=emit,
            worker_id=settings.worker_id,
            max_window=settings.max_window,
            on_step=on_step,
        )

    return serving.run(_serve(settings, WorkerHost(make_core)))


async def _serve(settings: DrafterSettings, host: WorkerHost[DrafterCommand, DrafterEvent]) -> int:
    announcement = _Announcement(settings, host)
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


class _Announcement:
    """Tells the registry, and the ready file, that this worker serves."""

    def __init__(
        self, settings: DrafterSettings, host: WorkerHost[DrafterCommand, DrafterEvent]
    ) -> None:
        self._settings = settings
        self._host = host
        self._registration: Registration | None = None

    async def publish(self, address: str) -> None:
        """Called once requests are served at `address`."""
        if self._settings.redis is not None:
            self._registration = Registration(
                self._settings.redis,
                self._host.describe(),
                self._settings.advertise or address,
                self._host.progress,
            )
            await self._registration.start()
        if self._settings.ready_file is not None:
            write_line(self._settings.ready_file, address)

    async def withdraw(self, _address: str = "") -> None:
        """No new sessions from now on."""
        if self._registration is not None:
            await self._registration.stop()


def _serving_options(settings: DrafterSettings) -> ServingOptions:
    tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)
    return ServingOptions(
        address=f"{settings.host}:{settings.port}",
        insecure=settings.insecure,
        tls=tls if settings.tls_cert is not None else None,
        grace=settings.grace,
    )
