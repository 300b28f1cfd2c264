"""`InferenceService` over gRPC: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from orchestrator import replies
from orchestrator.inference import Inference
from orchestrator.ports import SessionKey
from orchestrator.workers.link import WorkerLink
from orchestrator.workers.pool import Target, WorkerPool
from services.common.errors import InvalidRequest
from services.common.serving import border
from services.common.types import PROTOCOL_MAX, PROTOCOL_MIN

TENANT = "default"


class InferenceServicer(pb_grpc.InferenceServiceServicer):
    """One instance serves every client."""

    def __init__(
        self, inference: Inference, pool: WorkerPool, target: Target, version: str, method: str
    ) -> None:
        self._inference, self._pool, self._target = inference, pool, target
        self._version, self._method = version, method

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Start a generation and stream it."""
        async with border(context):
            events = await self._inference.generate(request, TENANT, _traceparent(context))
            async for event in events:
                yield replies.respond(pb.GenerateResponse, event)

    async def Resume(  # noqa: N802
        self, request: pb.ResumeRequest, context: Any
    ) -> AsyncIterator[pb.ResumeResponse]:
        """Re-attach at an offset."""
        async with border(context):
            key = _key(request.session_id)
            events = await self._inference.resume(key, request.offset, _traceparent(context))
            async for event in events:
                yield replies.respond(pb.ResumeResponse, event)

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:  # noqa: N802
        """End a session at once."""
        async with border(context):
            await self._inference.abort(_key(request.session_id))
        return pb.AbortResponse()

    async def GetSession(  # noqa: N802
        self, request: pb.GetSessionRequest, context: Any
    ) -> pb.GetSessionResponse:
        """What is known of a session."""
        async with border(context):
            stored = await self._inference.stored(_key(request.session_id))
        return pb.GetSessionResponse(
            session_id=request.session_id,
            status=replies.session_status(stored.status),
            prompt_tokens=stored.prompt_len,
            committed_tokens=stored.committed_len,
            finish_reason=replies.finish_reason(stored.finish_reason),
            seed=stored.seed,
        )

    async def GetModelInfo(  # noqa: N802
        self,
        request: pb.GetModelInfoRequest,
        context: Any,
    ) -> pb.GetModelInfoResponse:
        """The model that is served."""
        worker = self._target.worker
        return pb.GetModelInfoResponse(
            model=worker.model,
            model_fingerprint=worker.model_fingerprint,
            tokenizer_fingerprint=worker.tokenizer_fingerprint,
            vocab_size=worker.vocab_size,
            max_context_length=worker.max_context_length,
            eos_token_ids=self._target.eos_token_ids,
            default_sampling_params_json=self._inference.defaults_json(),
            has_chat_template=self._target.tokenizer.has_chat_template,
        )

    async def GetServerInfo(  # noqa: N802
        self,
        request: pb.GetServerInfoRequest,
        context: Any,
    ) -> pb.GetServerInfoResponse:
        """Workers, roles, loads and versions."""
        methods = self._pool.methods()
        return pb.GetServerInfoResponse(
            version=self._version,
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            workers=map(_worker_info, self._pool.links()),
            active_sessions=self._inference.active_sessions,
            default_method=self._method or (methods[0] if methods else ""),
        )


def _key(session_id: str) -> SessionKey:
    if not session_id or len(session_id) > 128:
        raise InvalidRequest("session_id", session_id[:160], "1 to 128 characters")
    return SessionKey(TENANT, session_id)


def _traceparent(context: Any) -> str:
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == "traceparent"), "")


def _worker_info(link: WorkerLink) -> pb.WorkerInfo:
    progress, worker = link.progress, link.description
    info = pb.WorkerInfo(
        worker_id=link.worker_id,
        role=link.role.value,
        address=link.address,
        connected=link.up,
        sessions=progress.sessions,
        queue_tokens=progress.queued_tokens,
        kv_tokens_used=progress.kv_tokens_used,
        kv_tokens_capacity=progress.kv_tokens_capacity,
    )
    if worker is not None:
        info.model, info.model_fingerprint = worker.model, worker.model_fingerprint
        info.methods.extend(worker.methods)
    return info
