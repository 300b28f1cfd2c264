"""A grpc.aio server with the standard health service, and reflection by option."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.errors import StartError
from services.common.serving.health_port import HealthPort
from services.common.serving.options import ServingOptions, server_credentials, server_options
from services.common.serving.parsing import Parsing

LIVENESS = "liveness"
READINESS = "readiness"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcServer:
    """Add servicers to `grpc`, then `start`."""

    def __init__(
        self,
        options: ServingOptions,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """Needs the running event loop. Nothing listens yet."""
        self._options = options
        self._health = health.aio.HealthServicer()
        self._probes: HealthPort | None = None
        if options.health_address is not None:
            self._probes = HealthPort(options.health_address, self._health)
        self.address = options.address
        guarded = (Parsing(), *interceptors)
        self.grpc = grpc.aio.server(interceptors=guarded, options=server_options(options))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)

    async def start(self, *services: str) -> str:
        """Listen; the bound host:port. `services` are full names, for reflection."""
        self._bind()
        if self._options.reflection:
            names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self.grpc)
        await self._health.set(LIVENESS, _SERVING)
        await self.set_ready(True)
        await self.grpc.start()
        if self._probes is not None:
            await self._probes.start(self._options.health_file)
        return self.address

    @property
    def health_address(self) -> str | None:
        """Where health alone is served, None = nowhere."""
        return self._probes.address if self._probes is not None else None

    async def set_ready(self, ready: bool) -> None:
        """Health of "" and "readiness": whether new work is welcome."""
        status = _SERVING if ready else _NOT_SERVING
        for name in ("", READINESS):
            await self._health.set(name, status)

    async def set_failed(self) -> None:
        """Health of every name: this process should be replaced."""
        await self._health.set(LIVENESS, _NOT_SERVING)
        await self.set_ready(False)

    async def stop(self, grace: float = 0.0) -> None:
        """Refuse new RPCs and end the open ones after `grace` seconds."""
        await self.grpc.stop(grace)
        # Last: until then it says that this process takes nothing new.
        if self._probes is not None:
            await self._probes.stop()

    def _bind(self) -> None:
        address, credentials = self._options.address, server_credentials(self._options)
        try:
            if credentials is None:
                port = self.grpc.add_insecure_port(address)
            else:
                port = self.grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise StartError(f"address: cannot listen on {address}") from error
        if not address.startswith("unix:"):
            self.address = f"{address.rpartition(':')[0]}:{port}"
