"""The HTTP server of `/metrics`, over TLS where that is asked for.

That of prometheus_client shakes hands in the thread that listens, waits for a silent client
without end, and keeps the certificates that it began with.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from socketserver import TCPServer
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds that a client may take over its handshake, its question or its reading."""

Contexts = Callable[[], ssl.SSLContext]
"""What a connection's TLS is made of, asked for at each of them."""


class Page:
    """Serves what `registry` collects, from the moment it is made, in threads of its own."""

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, contexts: Contexts | None
    ) -> None:
        """Raises OSError for an address that cannot be listened on."""
        app, kind = make_wsgi_app(registry), _Server6 if ":" in host else _Server
        self._server = make_server(host, port, app, kind, _Quiet)
        self._server.contexts = contexts
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics page", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """HOST:PORT that it listens on."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        """Stop; blocks for less than a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)


class _Server(ThreadingWSGIServer):
    """A thread for each connection; one that stalls keeps nobody else waiting."""

    contexts: Contexts | None = None

    def server_bind(self) -> None:
        """As HTTPServer does, but without asking the network for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; its handshake is left to its thread."""
        connection, peer = super().get_request()
        if self.contexts is None:
            return connection, peer
        wrapped = self.contexts().wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return wrapped, peer

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that left, was not let in or took too long is no fault of ours."""
        error = sys.exception()
        if isinstance(error, OSError):
            logger.debug("/metrics: a connection ended: %s", type(error).__name__)
        else:
            logger.error("/metrics: a request failed", exc_info=error)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    """Logs no request."""

    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Not this."""
