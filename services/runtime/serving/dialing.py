"""How an orchestrator opens connections to workers: TLS, the cluster token, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from services.contract.errors import StartError
from services.runtime.serving.bearer import with_bearer
from services.runtime.serving.cluster_token import ClusterToken
from services.runtime.serving.options import is_loopback, open_channel
from services.runtime.serving.tls import TlsFiles

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Dialing:
    """The settings of every connection to a worker; files are read when it opens.

    `server_name`: what the workers' certificates are for; empty = the address's host.
    `insecure` allows plaintext beyond loopback.
    """

    tls: TlsFiles | None = None
    server_name: str = ""
    token: ClusterToken | None = None
    insecure: bool = False

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to one worker; StartError when it is not allowed or not possible."""
        self._require_private(address)
        return open_channel(address, self.tls, self.server_name)

    def metadata(self, address: str) -> Metadata:
        """The metadata of every RPC there; StartError where it would travel in plaintext."""
        self._require_private(address)
        if self.token is None:
            return ()
        return with_bearer(self.token.shown())

    def _require_private(self, address: str) -> None:
        if self.tls is None and not (self.insecure or is_loopback(address)):
            raise StartError(
                f"{address} is not loopback: give link_ca for TLS, or allow plaintext with insecure"
            )
