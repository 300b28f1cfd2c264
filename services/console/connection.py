"""How a command that talks to a cluster connects: its flags as arguments of the client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from services.runtime.atomic_file import read_bytes
from services.runtime.options import option, options

Addresses = Annotated[
    list[str],
    option(
        "HOST:PORT of an orchestrator; repeatable, or several joined by commas.",
        section="Connection",
        flag="address",
        variable=True,
    ),
]


@options
class Connection:
    """Where to connect, and how."""

    addresses: Addresses
    token: str | None = option(
        "Token to show the orchestrator. Other users of the machine can read a command line; they "
        "cannot read the variable.",
        None,
        variable=True,
        repr=False,
    )
    ca: Path | None = option("PEM file of the authority to trust: TLS.", None, variable=True)
    cert: Path | None = option("PEM file of this client's certificate.", None, variable=True)
    key: Path | None = option("PEM file of its key.", None, variable=True)
    server_name: str | None = option(
        "Name in the orchestrator's certificate, if not the address's.", None, variable=True
    )
    insecure: bool = option("Allow plaintext beyond loopback.", False)

    def arguments(self) -> dict[str, Any]:
        """What `paceline.Client` takes. Raises StartError for a file that cannot be read."""
        return {
            "address": self.addresses,
            "token": self.token or None,
            "ca": _read("ca", self.ca),
            "cert": _read("cert", self.cert),
            "key": _read("key", self.key),
            "server_name": self.server_name or None,
            "insecure": self.insecure,
        }


def _read(flag: str, path: Path | None) -> bytes | None:
    return None if path is None else read_bytes(f"--{flag}", path)
