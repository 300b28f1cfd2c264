"""A process's health by `grpc.health.v1`, from its start to its end.

    liveness   the event loop runs; depends on no model, no Redis and no peer
    startup    a worker has loaded and checked its model; an orchestrator waits for verifiers
    readiness  work is accepted; also "" and the full names of the services

The health port serves it as soon as the event loop runs, the main port once it serves. The
former is in plaintext: probes of clusters speak no TLS. It reveals only whether the process
serves, so it needs no authentication.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2

from services.contract.errors import StartError
from services.runtime.atomic_file import write_line
from services.runtime.serving.calls import Calls
from services.runtime.serving.health_service import HealthService
from services.runtime.serving.listening import listen
from services.runtime.serving.options import ServingOptions

logger = logging.getLogger(__name__)

LIVENESS = "liveness"
STARTUP = "startup"
READINESS = "readiness"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Unauthenticated callers come to the health port: no large messages, few calls on one connection.
_PORT_OPTIONS = [
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),
]


class Health:
    """Statuses of one process, and the port on which probes ask for them.

    `service` is for the main port, `address` where health alone is served, None = nowhere.
    Readiness needs both: that work is accepted, and that nothing is in the way.
    """

    def __init__(self, options: ServingOptions) -> None:
        """Needs the running event loop. Nothing listens yet."""
        self.service = HealthService()
        self.address = options.health_address
        self._file = options.health_file
        # gRPC logs itself while it is destroyed if it was made and never started.
        self._server: grpc.aio.Server | None = None
        self._names = ["", READINESS]
        self._accepting = self._obstructed = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def ready(self) -> bool:
        """Whether new work is accepted (readiness)."""
        return self._accepting and not self._obstructed

    async def open(self) -> None:
        """Report liveness only. Raises StartError for a taken port."""
        self.service.set(LIVENESS, _SERVING)
        self.service.set(STARTUP, _NOT_SERVING)
        self._tell()
        if self.address is not None:
            self.address = await self._listen(self.address)

    async def started(self) -> None:
        """Nothing more has to be loaded. May be repeated."""
        self.service.set(STARTUP, _SERVING)

    async def serve(self, *services: str) -> None:
        """Report the process's readiness for these services, by full name, too."""
        self._names += services
        self._tell()

    async def accept(self, accepting: bool) -> None:
        """Set whether new work is accepted: not before serving, not while draining."""
        self._accepting = accepting
        self._tell()

    async def obstruct(self, obstructed: bool) -> None:
        """Set whether something that new work needs is away."""
        self._obstructed = obstructed
        self._tell()

    async def fail(self) -> None:
        """This process should be replaced."""
        self.service.set(LIVENESS, _NOT_SERVING)
        await self.accept(False)

    async def close(self) -> None:
        """Stop reporting."""
        if self._server is not None:
            await self._server.stop(0.0)

    async def _listen(self, address: str) -> str:
        self._server = server = grpc.aio.server(interceptors=(Calls(),), options=_PORT_OPTIONS)
        self.service.add_to(server)
        try:
            address = listen(server, address, setting="health_port")
        except StartError:
            await self.close()
            raise
        await server.start()
        logger.info("health is served on %s", address)
        if self._file is not None:
            write_line(self._file, address)
        return address

    def _tell(self) -> None:
        status = _SERVING if self.ready else _NOT_SERVING
        for name in self._names:
            self.service.set(name, status)
