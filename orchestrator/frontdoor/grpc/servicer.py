"""`InferenceService` over gRPC: decode, call, encode."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc
from paceline.by_name import write
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from orchestrator.frontdoor.grpc import replies
from orchestrator.frontdoor.grpc.call_limits import current_tenant
from orchestrator.frontdoor.grpc.decoding import incoming, incoming_score
from orchestrator.frontdoor.grpc.streaming import READ_PATIENCE, metadata, reading, traceparent
from orchestrator.frontdoor.inference import Inference
from orchestrator.frontdoor.intake import vetted
from orchestrator.session.answer import Event
from orchestrator.session.output import Prefix
from orchestrator.session.ports import Call, Outline, SessionKey
from orchestrator.workers.link import WorkerLink
from orchestrator.workers.pool import Target, WorkerPool
from services.contract.errors import InvalidRequest
from services.contract.types import EMPTY_HASH, PROTOCOL
from services.runtime.serving import border

_Response = TypeVar("_Response", pb.GenerateResponse, pb.ResumeResponse)

_ADVICE = "; the session can be resumed"
_CALL = re.compile(r"([A-Za-z0-9-]{1,64})/([0-9]{1,15})")


class InferenceServicer(pb_grpc.InferenceServiceServicer):
    """One instance serves every client; a `Door` before it says which tenant calls."""

    def __init__(
        self,
        inference: Inference,
        pool: WorkerPool,
        target: Target,
        version: str,
        *,
        shared: bool = False,
        read_patience: float = READ_PATIENCE,
    ) -> None:
        """`shared`: several tenants call, who are not told where workers are or who else is here.

        `read_patience`: seconds that one message of a stream may wait for its reader.
        """
        self._inference, self._pool, self._target = inference, pool, target
        self._version, self._shared = version, shared
        self._patience = read_patience

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on this server, too; the service's full name."""
        pb_grpc.add_InferenceServiceServicer_to_server(self, server)
        name: str = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
        return name

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Any
    ) -> None:
        """Start a generation and stream it."""
        async with border(context):
            tenant, parent = current_tenant(), traceparent(context)
            started = self._inference.generate(incoming(request), tenant, parent, _call(context))
            del request  # It may be megabytes long, and the stream hours.
            events = await started
            await self._stream(context, pb.GenerateResponse, events)

    async def Resume(  # noqa: N802
        self, request: pb.ResumeRequest, context: Any
    ) -> None:
        """Re-attach at an offset."""
        async with border(context):
            key, tenant, parent = _key(request.session_id), current_tenant(), traceparent(context)
            asked = (parent, tenant, _call(context))
            prefix = _prefix(request)
            del request  # Bytes that nobody knows may be in it.
            vetted()
            events = await self._inference.resume(key, prefix, *asked)
            await self._stream(context, pb.ResumeResponse, events)

    async def _stream(
        self,
        context: Any,
        kind: type[_Response],
        events: AsyncIterator[Event],
    ) -> None:
        """Write the events, no faster than they are read."""
        async with reading(context, self._patience, _ADVICE) as reader:
            async for event in events:
                if not await reader.hears(replies.respond(kind, event)):
                    return

    async def Score(  # noqa: N802
        self, request: pb.ScoreRequest, context: Any
    ) -> pb.ScoreResponse:
        """How likely continuations of a context are."""
        async with border(context):
            caller = (current_tenant(), traceparent(context))
            scored = self._inference.score(incoming_score(request), *caller)
            del request  # It may be megabytes long.
            # Thousands of rows take a while.
            return await asyncio.to_thread(replies.scores, *await scored)

    async def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:  # noqa: N802
        """End a session at once."""
        async with border(context):
            await self._inference.abort(_key(request.session_id))
        return pb.AbortResponse()

    async def GetSession(  # noqa: N802
        self, request: pb.GetSessionRequest, context: Any
    ) -> pb.GetSessionResponse:
        """What is known of a session."""
        stored: Outline
        async with border(context):
            key = _key(request.session_id)
            if request.include_rounds:
                stored, rounds = await self._inference.stored_rounds(
                    key, request.offset, current_tenant(), replies.session_round
                )
            else:
                stored, rounds = await self._inference.stored(key), []
        return pb.GetSessionResponse(
            session_id=request.session_id,
            status=replies.NUMBERS[stored.status],
            prompt_tokens=stored.prompt_len,
            committed_tokens=stored.committed_len,
            finish_reason=replies.NUMBERS[stored.finish_reason],
            seed=stored.seed,
            created_unix_ms=stored.created_ms,
            rounds=rounds,
            index=stored.index,
            n=stored.n,
        )

    async def GetModelInfo(  # noqa: N802
        self,
        request: pb.GetModelInfoRequest,
        context: Any,
    ) -> pb.GetModelInfoResponse:
        """The model that is served, the same for every tenant."""
        worker, tokenizer = self._target.worker, self._target.tokenizer
        reasoning = tokenizer.reasoning
        end = None if reasoning is None else reasoning.end_id
        return pb.GetModelInfoResponse(
            model=worker.model,
            model_fingerprint=worker.model_fingerprint,
            tokenizer_fingerprint=worker.tokenizer_fingerprint,
            vocab_size=worker.vocab_size,
            max_context_length=worker.max_context_length,
            eos_token_ids=self._target.tokenizer.eos_token_ids,
            default_sampling_params_json=self._inference.offer.defaults_json(),
            has_chat_template=tokenizer.has_chat_template,
            reasoning_end="" if reasoning is None else reasoning.end,
            reasoning_end_token_ids=() if end is None else (end,),
            chat_template_takes_tools=tokenizer.takes_tools,
            chat_template_kwargs=tokenizer.template_kwargs,
        )

    async def GetServerInfo(  # noqa: N802
        self,
        request: pb.GetServerInfoRequest,
        context: Any,
    ) -> pb.GetServerInfoResponse:
        """Workers, roles, loads and versions.

        Where tenants share this server, addresses are left empty and only the caller's
        own sessions are counted, and nothing is summed.
        """
        active = self._inference.active_sessions
        if self._shared:
            active = self._inference.sessions_of(current_tenant().name)
        return pb.GetServerInfoResponse(
            version=self._version,
            protocol_min=PROTOCOL,
            protocol_max=PROTOCOL,
            workers=[_worker_info(link, self._shared) for link in self._pool.links()],
            active_sessions=active,
            default_method=self._inference.offer.default_method(),
            totals=None if self._shared else write(pb.ServerTotals, self._inference.live.totals()),
        )


def _key(session_id: str) -> SessionKey:
    if not session_id or len(session_id) > 128:
        raise InvalidRequest("session_id", session_id[:160], "1 to 128 characters")
    return SessionKey(current_tenant().name, session_id)


def _prefix(request: pb.ResumeRequest) -> Prefix:
    """What the caller has already."""
    if not request.HasField("prefix_hash"):
        return Prefix(request.offset)
    if not request.offset and request.prefix_hash != EMPTY_HASH:
        raise InvalidRequest("prefix_hash", request.prefix_hash, f"{EMPTY_HASH} at offset 0")
    return Prefix(request.offset, request.prefix_hash)


def _call(context: Any) -> Call | None:
    """The reader's call, if it says which it is: READER/NUMBER."""
    says = _CALL.fullmatch(metadata(context, "paceline-call"))
    return Call(says[1], int(says[2])) if says else None


def _worker_info(link: WorkerLink, shared: bool) -> pb.WorkerInfo:
    progress, worker = link.progress, link.description
    info = pb.WorkerInfo(
        worker_id=link.worker_id,
        role=link.role.value,
        address="" if shared else link.address,
        connected=link.up,
        sessions=progress.sessions,
        queue_tokens=progress.queued_tokens,
        kv_tokens_used=progress.kv_tokens_used,
        kv_tokens_capacity=progress.kv_tokens_capacity,
        step_ms=progress.step_ms,
        draining=link.draining,
    )
    if worker is not None:
        info.model, info.model_fingerprint = worker.model, worker.model_fingerprint
        info.methods.extend(worker.methods)
    return info
