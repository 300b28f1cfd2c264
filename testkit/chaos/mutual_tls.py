"""What processes and callers of a cluster on mutual TLS show each other."""

from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Self

import grpc

from services.cluster.certificates import SERVER_NAME, make_certificates


@dataclass(frozen=True, slots=True)
class MutualTls:
    """A folder with development certificates and the token of the cluster."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        """New ones, written there."""
        make_certificates(folder)
        made = cls(folder)
        made._token.write_text(token_urlsafe(32))
        return made

    def listening(self) -> list[str]:
        """Flags of every process: who calls it must show a certificate, who links the token."""
        return [*self._pair("--tls", "server"), "--cluster-token-file", str(self._token)]

    def linking(self) -> list[str]:
        """Flags of an orchestrator beside those."""
        return [*self._pair("--link", "orchestrator"), "--link-server-name", SERVER_NAME]

    def of_a_client(self) -> dict[str, Any]:
        """What the library's client takes."""
        files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
        return {name: (self.folder / file).read_bytes() for name, file in files.items()}

    def credentials(self) -> grpc.ChannelCredentials:
        """The same, for a bare channel."""
        own = self.of_a_client()
        return grpc.ssl_channel_credentials(own["ca"], own["key"], own["cert"])

    @property
    def _token(self) -> Path:
        return self.folder / "token"

    def _pair(self, flags: str, name: str) -> list[str]:
        given = {"cert": f"{name}.pem", "key": f"{name}.key", "ca": "ca.pem"}
        return [word for f, file in given.items() for word in (f"{flags}-{f}", self._at(file))]

    def _at(self, file: str) -> str:
        return str(self.folder / file)
