"""Health alone, on a port of its own in plaintext: probes of clusters speak no TLS.

It reveals only whether the process serves, so it needs no authentication.
"""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from services.contract.errors import StartError
from services.runtime.atomic_file import write_line

logger = logging.getLogger(__name__)

# Unauthenticated callers come here: no large messages, few calls on one connection.
_OPTIONS = [
    ("grpc.max_receive_message_length", 4096),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),
]


class HealthPort:
    """Serves what `servicer` knows, for as long as the process lives."""

    def __init__(self, address: str, servicer: health.aio.HealthServicer) -> None:
        """Needs the running event loop. Nothing listens yet."""
        self.address = address
        self._server = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self._server)

    async def start(self, file: Path | None = None) -> None:
        """Listen; `file` gets the bound host:port. Raises StartError for a taken port."""
        try:
            port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            await self.stop()
            raise StartError(f"health_port: cannot listen on {self.address}") from error
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await self._server.start()
        logger.info("health is served on %s", self.address)
        if file is not None:
            write_line(file, self.address)

    async def stop(self) -> None:
        """End it at once."""
        await self._server.stop(0.0)
