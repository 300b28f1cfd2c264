"""How a command that talks to a cluster connects: its flags as arguments of the client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from services.contract.errors import StartError

Addresses = Annotated[
    list[str],
    typer.Option(
        envvar="PACELINE_ADDRESS",
        help="HOST:PORT of an orchestrator; repeatable, or several joined by commas.",
    ),
]
OptionalAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        envvar="PACELINE_ADDRESS",
        help="HOST:PORT of an orchestrator; repeatable, or several joined by commas.",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_TOKEN",
        help="Token to show the orchestrator. Other users of the machine can read a command "
        "line; they cannot read the variable.",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option("--ca", envvar="PACELINE_CA", help="PEM file of the authority to trust: TLS."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--cert", envvar="PACELINE_CERT", help="PEM file of this client's certificate."),
]
PrivateKey = Annotated[
    Path | None, typer.Option("--key", envvar="PACELINE_KEY", help="PEM file of its key.")
]
ServerName = Annotated[
    str | None,
    typer.Option(
        envvar="PACELINE_SERVER_NAME",
        help="Name in the orchestrator's certificate, if not the address's.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow plaintext beyond loopback.")]
NoResume = Annotated[
    bool, typer.Option("--no-resume", help="End when the connection breaks, rather than go on.")
]


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to connect, and how."""

    addresses: Sequence[str]
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    insecure: bool = False
    resume: bool = True

    def arguments(self) -> dict[str, Any]:
        """What `paceline.Client` takes. Raises StartError for a file that cannot be read."""
        return {
            "address": self.addresses,
            # A variable that is set to nothing is one that is not set.
            "token": self.token or None,
            "ca": _read("ca", self.ca),
            "cert": _read("cert", self.cert),
            "key": _read("key", self.key),
            "server_name": self.server_name or None,
            "insecure": self.insecure,
            "resume": self.resume,
        }


def _read(flag: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise StartError(f"--{flag}: cannot read {path}: {error.strerror}") from error
