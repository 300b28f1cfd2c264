"""A grpc.aio server with the standard health service, and reflection by option."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection

from services.contract.errors import StartError
from services.runtime.serving.calls import Calls
from services.runtime.serving.health import Health
from services.runtime.serving.health_service import NAME as HEALTH
from services.runtime.serving.listening import listen
from services.runtime.serving.options import (
    ServingOptions,
    server_credentials,
    server_options,
)


class GrpcServer:
    """Add servicers to `grpc`, then `start`."""

    def __init__(
        self,
        options: ServingOptions,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        health: Health | None = None,
    ) -> None:
        """Needs the running event loop. Nothing listens yet.

        `health`: that of the process, open already; left out: one that begins and ends
        with this server.
        """
        self._options = options
        self._owns_health = health is None
        self._health = Health(options) if health is None else health
        self.address = options.address
        self.grpc = grpc.aio.server(
            interceptors=(Calls(), *interceptors), options=server_options(options)
        )
        self._health.service.add_to(self.grpc)

    async def start(self, *services: str, ready: bool = True) -> str:
        """Listen; the bound host:port. `services` are full names, for reflection and health.

        `ready`: whether work is welcome at once; else `set_ready` says when.
        """
        try:
            self._bind()
            if self._owns_health:
                await self._health.open()
        except StartError:
            await self.stop()
            raise
        if self._options.reflection:
            names = (*services, HEALTH)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self.grpc)
        await self.grpc.start()
        await self._health.started()
        await self._health.serve(*services)
        await self._health.accept(ready)
        return self.address

    @property
    def health_address(self) -> str | None:
        """Where health alone is served, None = nowhere."""
        return self._health.address

    async def set_ready(self, ready: bool) -> None:
        """Readiness: whether new work is welcome."""
        await self._health.accept(ready)

    async def set_failed(self) -> None:
        """Liveness and readiness: this process should be replaced."""
        await self._health.fail()

    async def stop(self, grace: float = 0.0) -> None:
        """Refuse new RPCs and end the open ones after `grace` seconds."""
        await self.grpc.stop(grace)
        # Last: until then it says that this process takes nothing new.
        if self._owns_health:
            await self._health.close()

    def _bind(self) -> None:
        address, credentials = self._options.address, server_credentials(self._options)
        self.address = listen(self.grpc, address, credentials)
