"""The service `vllm.grpc.engine.VllmEngine` in front of the same sessions, for gateways.

A gateway (smg) turns the OpenAI API into calls of this service: it tokenizes, applies the
chat template and makes text of the tokens again. Here:

asking     its request as one of ours, or the field that cannot be served
answering  our events as its responses
archive    the served tokenizer as the archive that it fetches
servicer   the service

The stubs are those of the package smg-grpc-proto, the extra `gateway`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.streaming import READ_PATIENCE
from services.common.errors import StartError

if TYPE_CHECKING:
    import grpc

    from orchestrator.inference import Inference
    from orchestrator.workers.pool import Target, WorkerPool


def require() -> None:
    """Raises StartError where the extra is not installed."""
    try:
        import smg_grpc_proto.generated.vllm_engine_pb2_grpc  # noqa: F401
    except ImportError as error:
        raise StartError(
            f"vllm_engine: needs the extra gateway, pip install 'paceline[gateway]' ({error})"
        ) from error


def serve(
    server: grpc.aio.Server,
    inference: Inference,
    pool: WorkerPool,
    target: Target,
    version: str,
    *,
    most_sessions: int,
    ready: Callable[[], bool],
    shared: bool = False,
    read_patience: float = READ_PATIENCE,
) -> str:
    """Add the service to a server; its full name. See `VllmEngineServicer`."""
    from smg_grpc_proto.generated import vllm_engine_pb2 as engine
    from smg_grpc_proto.generated import vllm_engine_pb2_grpc as engine_grpc

    from orchestrator.facade.servicer import VllmEngineServicer

    servicer = VllmEngineServicer(
        inference,
        pool,
        target,
        version,
        most_sessions=most_sessions,
        ready=ready,
        shared=shared,
        read_patience=read_patience,
    )
    engine_grpc.add_VllmEngineServicer_to_server(servicer, server)
    name: str = engine.DESCRIPTOR.services_by_name["VllmEngine"].full_name
    return name
