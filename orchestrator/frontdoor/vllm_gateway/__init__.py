"""The service `vllm.grpc.engine.VllmEngine` in front of the same sessions, for gateways.

A gateway (smg) turns the OpenAI API into calls of this service: it applies the chat
template, tokenizes and detokenizes. Here:

request     its request as one of ours, or the unsupported field
extensions  what a client says of sessions and speculation, in the request's id or metadata
response    our events as its responses
open_calls  which open call an `Abort` means
archive     the served tokenizer as the archive that it fetches
servicer    the service

The stubs are those of the package smg-grpc-proto, the extra `gateway`.
"""

from __future__ import annotations

from services.contract.errors import StartError


def require() -> None:
    """Raises StartError where the extra is not installed."""
    try:
        import smg_grpc_proto.generated.vllm_engine_pb2_grpc  # noqa: F401
    except ImportError as error:
        raise StartError(
            f"vllm_engine: needs the extra gateway, pip install 'paceline[gateway]' ({error})"
        ) from error
