"""The secret that the processes of one cluster share, and the interceptor that checks it.

An orchestrator sends it with every RPC on a link; a worker refuses all others. It is never
in a log, a message or a `repr`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from services.contract.errors import StartError
from services.runtime.atomic_file import read_bytes
from services.runtime.serving.bearer import bearer_of
from services.runtime.serving.options import ServingOptions, is_loopback, server_credentials
from services.runtime.serving.reloading import Reloading

HEALTH_SERVICE = "grpc.health.v1.Health"

_SETTING = "cluster_token_file"


@dataclass(frozen=True, slots=True, repr=False)
class _Secrets:
    """The token to send, and the digests of all valid ones."""

    shown: str
    known: tuple[bytes, ...]


class ClusterToken:
    """A file of tokens, one a line, read again when it changes.

    The first is sent, each is valid: so a token can be replaced without a pause.
    """

    def __init__(self, path: Path) -> None:
        """Raises StartError for a file that holds no token."""
        self._secrets = Reloading((path,), lambda: _load(path))

    def shown(self) -> str:
        """What an orchestrator sends."""
        return self._secrets.current().shown

    def matches(self, token: str) -> bool:
        """Whether it is one of the tokens, in constant time."""
        digest = sha256(token.encode()).digest()
        equal = [hmac.compare_digest(digest, known) for known in self._secrets.current().known]
        return any(equal)


def _load(path: Path) -> _Secrets:
    tokens = [line.strip() for line in read_bytes(_SETTING, path).splitlines() if line.strip()]
    if not tokens:
        raise StartError(f"{_SETTING}: {path} holds no token")
    if not all(33 <= byte <= 126 for token in tokens for byte in token):
        raise StartError(
            f"{_SETTING}: {path} must hold one token a line, in printable ASCII without blanks"
        )
    return _Secrets(tokens[0].decode(), tuple(sha256(token).digest() for token in tokens))


class LinkGuard(grpc.aio.ServerInterceptor):
    """Refuses every RPC without the cluster's token, except health."""

    def __init__(self, token: ClusterToken) -> None:
        self._token = token

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Decides on the metadata alone, before any message is read."""
        if handler_call_details.method.startswith(f"/{HEALTH_SERVICE}/") or self._token.matches(
            bearer_of(handler_call_details.invocation_metadata)
        ):
            return await continuation(handler_call_details)
        return _REFUSAL


async def _refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the cluster token is missing or not the right one"
    )


# For unary RPCs, too, so that no unauthenticated message is read.
_REFUSAL: Any = grpc.stream_stream_rpc_method_handler(_refuse)


def link_guards(options: ServingOptions) -> list[grpc.aio.ServerInterceptor]:
    """The interceptors of a worker's links. StartError if anybody could open one."""
    if options.cluster_token_file is not None:
        return [LinkGuard(ClusterToken(options.cluster_token_file))]
    known = options.tls is not None and options.tls.ca is not None
    if not (known or options.insecure or is_loopback(options.address)):
        raise StartError(
            f"address: {options.address} is not loopback and anybody could open links; give "
            "tls_ca (client certificates) or cluster_token_file, or allow anybody with insecure"
        )
    return []


def check_worker(options: ServingOptions) -> None:
    """Raise StartError for what `serve_worker` would refuse but a taken port."""
    server_credentials(options)
    link_guards(options)
