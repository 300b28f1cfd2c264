"""How the client connects: TLS, plaintext where it is allowed, gRPC options."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable

import grpc

_MAX_MESSAGE_BYTES = 32 << 20
_SERVICE = "paceline.v1.InferenceService"

# Only calls that may be repeated without harm; a stream is resumed instead.
_RETRIES = {
    "methodConfig": [
        {
            "name": [
                {"service": _SERVICE, "method": method}
                for method in ("Abort", "GetSession", "GetModelInfo", "GetServerInfo")
            ],
            "retryPolicy": {
                "maxAttempts": 3,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.service_config", json.dumps(_RETRIES)),
]


def open_channel(
    address: str,
    ca: bytes | None,
    cert: bytes | None,
    key: bytes | None,
    credentials: grpc.ChannelCredentials | None,
    insecure: bool,
) -> Callable[[], grpc.aio.Channel]:
    """What opens the channel in the running loop; ValueError when that is not allowed."""
    if credentials is None and (ca or cert or key):
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
    if credentials is None and not (insecure or _is_loopback(address)):
        raise ValueError(
            f"{address} is not loopback: give ca or credentials for TLS, or insecure=True"
        )
    if credentials is None:
        return lambda: grpc.aio.insecure_channel(address, options=_OPTIONS)
    return lambda: grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def _is_loopback(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
