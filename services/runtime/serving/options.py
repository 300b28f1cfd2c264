"""How processes listen and connect: addresses, TLS, gRPC options."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.contract.errors import StartError
from services.runtime.serving.tls import TlsFiles, channel_credentials, tls_server_credentials

MAX_MESSAGE_BYTES = 32 << 20
UNREAD_BYTES = 4096
"""Buffered of what a worker says before it is read: a few frames, or one that is larger."""
MAX_PENDING_CALLS = 20_000
PENDING_SECONDS = 300

Options = list[tuple[str, int | str]]

# gRPC pings a peer after 20 s of silence, and gives it up after 10 s without an answer. The
# failure detector (`orchestrator.workers.detector`) is faster and accounts for stalls of its own
# process. gRPC does not, so its limit is longer: a process that stalled briefly keeps its links.
_BOTH_SIDES: Options = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Pings that estimate bandwidth have a limit of their own, and keepalive waits for them.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Where and how a process listens.

    `address` is host:port, port 0 = any free one. `insecure` allows an address
    other than loopback without TLS. `grace` is the time in seconds that open
    sessions get when the process is told to stop. `max_connection_age` (seconds)
    makes clients look names up anew; never on a worker, whose links are long.
    `cluster_token_file`: callers that open a link to this worker need a token in it.
    `health_address`: where health alone is served, always in plaintext, for probes
    that speak no TLS; None = nowhere. `health_file` gets it as one line once bound.
    `max_request_bytes`: of one message that comes in; a larger one is refused unread.
    `unread_bytes`: buffered of a message before it is read; None = gRPC's default, megabytes.
    """

    address: str = "127.0.0.1:0"
    insecure: bool = False
    tls: TlsFiles | None = None
    cluster_token_file: Path | None = None
    reflection: bool = False
    grace: float = 10.0
    max_connection_age: float | None = None
    health_address: str | None = None
    health_file: Path | None = None
    max_request_bytes: int = MAX_MESSAGE_BYTES
    unread_bytes: int | None = None


def channel_options() -> Options:
    """Options of every channel inside the cluster."""
    # A pool shared with a channel that was given up would hand its dead connection on.
    return [
        *_BOTH_SIDES,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
        # What a worker says waits there, and its frames are joined, where it is not read at once.
        *_unread(UNREAD_BYTES),
    ]


def server_options(options: ServingOptions) -> Options:
    """Options of every server."""
    chosen = [
        *_BOTH_SIDES,
        ("grpc.max_receive_message_length", options.max_request_bytes),
        # Far below the ping interval of peers and clients: who pings more often is cut off.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.so_reuseport", 0),
        # Calls that the event loop has not taken yet. Beyond these gRPC cancels without a status;
        # its own limits, 1000 by chance and 30 s, lose calls of a burst on a busy machine.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        ("grpc.server_max_unrequested_time_in_server", PENDING_SECONDS),
    ]
    if options.unread_bytes is not None:
        chosen += _unread(options.unread_bytes)
    if options.max_connection_age is not None:
        age = int(options.max_connection_age * 1000)
        chosen += [("grpc.max_connection_age_ms", age), ("grpc.max_connection_age_grace_ms", age)]
    return chosen


def _unread(most: int) -> Options:
    """Of what comes in, so many bytes are buffered before it is read."""
    return [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", most)]


def open_channel(
    address: str, tls: TlsFiles | None = None, server_name: str = ""
) -> grpc.aio.Channel:
    """A channel to one process of the cluster; needs the running event loop.

    `server_name`: what the server's certificate must be for; empty = the address's host.
    Raises StartError for files that cannot be used.
    """
    options = channel_options()
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


def server_credentials(options: ServingOptions) -> grpc.ServerCredentials | None:
    """Credentials to listen with, None for plaintext; StartError when not allowed."""
    if options.tls is None:
        _require_local(options)
        return None
    return tls_server_credentials(options.tls)


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


def bound(address: str, port: int) -> str:
    """An address that was listened on, with the port that it got."""
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def host_port(host: str, port: int) -> str:
    """One address from its parts; an IPv6 address gets its brackets."""
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{bracketed}:{port}"
