"""How processes listen and connect: addresses, TLS, gRPC options."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.common.errors import StartError

MAX_MESSAGE_BYTES = 32 << 20

_Options = list[tuple[str, int]]

# A peer that is silent for 20 s is pinged, and gone when 5 s bring no answer.
_BOTH_SIDES: _Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files.

    With `ca`, a server demands a client certificate signed by it, and a client
    trusts only servers signed by it.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Where and how a process listens.

    `address` is host:port, port 0 = any free one. `insecure` allows an address
    other than loopback without TLS. `grace` is the time in seconds that open
    sessions get when the process is told to stop. `max_connection_age` (seconds)
    makes clients look names up anew; never on a worker, whose links are long.
    """

    address: str = "127.0.0.1:0"
    insecure: bool = False
    tls: TlsFiles | None = None
    auth_token: str | None = None
    reflection: bool = False
    grace: float = 10.0
    max_connection_age: float | None = None


def channel_options() -> list[tuple[str, int]]:
    """Options of every channel inside the cluster."""
    return list(_BOTH_SIDES)


def server_options(options: ServingOptions) -> list[tuple[str, int]]:
    """Options of every server."""
    chosen = [
        *_BOTH_SIDES,
        # Below the peers' ping interval, else they are cut off for pinging too much.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),
    ]
    if options.max_connection_age is not None:
        age = int(options.max_connection_age * 1000)
        chosen += [("grpc.max_connection_age_ms", age), ("grpc.max_connection_age_grace_ms", age)]
    return chosen


def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.aio.Channel:
    """A channel to one process of the cluster; needs the running event loop."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=channel_options())
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read("tls_ca", tls.ca),
        private_key=_read("tls_key", tls.key),
        certificate_chain=_read("tls_cert", tls.cert),
    )
    return grpc.aio.secure_channel(address, credentials, options=channel_options())


def server_credentials(options: ServingOptions) -> grpc.ServerCredentials | None:
    """Credentials to listen with, None for plaintext; StartError when not allowed."""
    if options.auth_token is not None:
        raise StartError("auth_token: token authentication is not supported yet")
    if options.tls is None:
        _require_local(options)
        return None
    cert, key = _read("tls_cert", options.tls.cert), _read("tls_key", options.tls.key)
    if cert is None or key is None:
        raise StartError("tls_cert and tls_key: a server needs both")
    ca = _read("tls_ca", options.tls.ca)
    return grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=ca is not None)


def _require_local(options: ServingOptions) -> None:
    if not options.insecure and not is_loopback(options.address):
        raise StartError(
            f"address: {options.address} is not loopback; give tls_cert and tls_key, "
            "or allow plaintext with insecure"
        )


def is_loopback(address: str) -> bool:
    """Whether host:port (or unix:path) can be reached from this machine only."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(setting: str, path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise StartError(f"{setting}: cannot read {path}: {error.strerror}") from error
