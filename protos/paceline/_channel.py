"""How the client connects: TLS, plaintext where it is allowed, gRPC options."""

from __future__ import annotations

import json
from collections.abc import Sequence

import grpc

from paceline._addresses import is_loopback

ChannelOptions = list[tuple[str, int | str]]
Metadata = tuple[tuple[str, str], ...]

_MAX_MESSAGE_BYTES = 32 << 20
_SERVICE = "paceline.v1.InferenceService"

# A ping leaves after this part of the silence; the rest is left for its answer.
_PING_AFTER = 0.6
# Below, the pings would come faster than our servers allow (one in 5 s).
LEAST_SILENCE = 10.0

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


def channel_options(silence: float, server_name: str | None) -> ChannelOptions:
    """Options of every channel; ValueError for a `silence` that servers do not bear."""
    if not silence >= LEAST_SILENCE:
        raise ValueError(f"silence: {silence:g} is not allowed; allowed is {LEAST_SILENCE:g} s up")
    options: ChannelOptions = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", round(1000 * silence * _PING_AFTER)),
        ("grpc.keepalive_timeout_ms", round(1000 * silence * (1 - _PING_AFTER))),
        # Without this a ping may go unanswered for a minute, whatever the one above says.
        ("grpc.http2.ping_timeout_ms", round(1000 * silence * (1 - _PING_AFTER))),
        ("grpc.http2.max_pings_without_data", 0),
        # Named for what it is to the backoff; it is how long one connect may take.
        ("grpc.min_reconnect_backoff_ms", round(1000 * silence)),
        # The attempts have a backoff of their own; the channel must not sleep through them.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        ("grpc.service_config", json.dumps(_RETRIES)),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


def channel_credentials(
    ca: bytes | None,
    cert: bytes | None,
    key: bytes | None,
    credentials: grpc.ChannelCredentials | None,
    server_name: str | None,
) -> grpc.ChannelCredentials | None:
    """What TLS is spoken with, None for plaintext; ValueError for what does not fit."""
    if (cert is None) != (key is None):
        raise ValueError("cert and key: one is nothing without the other")
    if credentials is None and (ca or cert):
        credentials = grpc.ssl_channel_credentials(ca, key, cert)
    if credentials is None and server_name is not None:
        raise ValueError("server_name: only TLS has one; give ca or credentials, too")
    return credentials


def require_local(addresses: Sequence[str]) -> None:
    """ValueError for an address that plaintext, and a token in it, must not go to unasked."""
    for address in addresses:
        if not is_loopback(address):
            raise ValueError(
                f"{address} is not loopback: give ca or credentials for TLS, or insecure=True"
            )


def authorization(token: str | None) -> Metadata:
    """The metadata of every call; ValueError, which does not show it, for a token unfit for it."""
    if token is None:
        return ()
    if not token or not all("!" <= letter <= "~" for letter in token):
        raise ValueError("token: expected visible ASCII characters, and no space among them")
    return (("authorization", f"Bearer {token}"),)
