"""`vllm.grpc.engine.VllmEngine` over gRPC: decode, call, encode.

The `Door` before it settles who may call, how often, and as which tenant, as for
`InferenceService`. A session is not stored, and ends with its call, unless the client named it
(see `extensions`): then it is one of our own API, which may be asked for again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as engine
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as engine_grpc

from orchestrator.frontdoor.grpc.call_limits import current_tenant
from orchestrator.frontdoor.grpc.streaming import READ_PATIENCE, reading, traceparent
from orchestrator.frontdoor.inference import Inference
from orchestrator.frontdoor.requests import IncomingRequest
from orchestrator.frontdoor.requests.format_start import begins_later
from orchestrator.frontdoor.vllm_gateway import extensions
from orchestrator.frontdoor.vllm_gateway.archive import archive, chunks
from orchestrator.frontdoor.vllm_gateway.open_calls import OpenCall, OpenCalls
from orchestrator.frontdoor.vllm_gateway.request import (
    SESSION_PREFIX,
    in_its_words,
    list_lengths,
    session_id,
    to_request,
)
from orchestrator.frontdoor.vllm_gateway.response import Answers, acceptance
from orchestrator.session.answer import Event
from orchestrator.session.ports import SessionKey
from orchestrator.workers.pool import Target, WorkerPool
from services.contract.errors import (
    DeadlinePassed,
    Draining,
    InvalidRequest,
    NoWorker,
    PacelineError,
)
from services.contract.types import Role
from services.runtime.serving import border

MOST_ABORTED = 10_000
"""Requests that one Abort may name."""

# No folder of any gateway: it has to ask for the tokenizer, and gets the one that verifiers have.
_SERVED_HERE = "/paceline/tokenizer"
# In place of what tells a client of ours that it can resume.
_WORDS: dict[type[PacelineError], str] = {
    DeadlinePassed: "the time that a request may take is over",
    Draining: "this orchestrator stops; send the request again",
    NoWorker: "no verifier could take the request in time; send it again",
}


class VllmEngineServicer(engine_grpc.VllmEngineServicer):  # type: ignore[misc, unused-ignore]
    """One instance serves every gateway."""

    def __init__(
        self,
        inference: Inference,
        pool: WorkerPool,
        target: Target,
        version: str,
        *,
        most_sessions: int,
        ready: Callable[[], bool],
        shared: bool = False,
        read_patience: float = READ_PATIENCE,
    ) -> None:
        """`ready`: whether this process takes new requests. The rest as `InferenceServicer`."""
        self._inference, self._pool, self._target = inference, pool, target
        self._version, self._most_sessions = version, most_sessions
        self._ready, self._shared, self._patience = ready, shared, read_patience
        self._began = time.time()
        self._calls = OpenCalls(inference.end_once)
        self._archive: asyncio.Future[bytes] | None = None

    def add_to(self, server: grpc.aio.Server) -> str:
        """Serve on this server, too; the service's full name."""
        engine_grpc.add_VllmEngineServicer_to_server(self, server)
        name: str = engine.DESCRIPTOR.services_by_name["VllmEngine"].full_name
        return name

    async def Generate(self, request: engine.GenerateRequest, context: Any) -> None:  # noqa: N802
        """Generate; stream the tokens, or send them at the end."""
        async with border(context), self._calls.enter(_key(request.request_id)) as call:
            with _in_its_words():
                started = await self._start(request, context, call)
                answers = Answers(request)
                del request  # It may be megabytes long, and the stream hours.
                async with reading(context, self._patience) as reader, aclosing(started) as events:
                    async for event in events:
                        for response in answers.add(event):
                            if not await reader.hears(response):
                                return
                context.set_trailing_metadata(acceptance(answers.totals))

    async def _start(
        self, request: engine.GenerateRequest, context: Any, call: OpenCall
    ) -> AsyncGenerator[Event]:
        """The events of the session that a request is for."""
        said = extensions.read(request.request_id, context.invocation_metadata())
        asked = IncomingRequest(
            request.ByteSize(),
            list_lengths(request),
            lambda: said.added_to(to_request(request)),
        )
        tenant, parent = current_tenant(), traceparent(context)
        if said.session is not None:
            return await self._inference.generate(asked, tenant, parent)
        call.session = key = _session(request.request_id)
        return await self._inference.generate_once(asked, key, tenant, parent)

    async def Abort(  # noqa: N802
        self, request: engine.AbortRequest, context: Any
    ) -> engine.AbortResponse:
        """End requests at once; unknown and ended ones are ignored.

        A session that has a name goes on without them, as when a client of our own API leaves.
        """
        async with border(context):
            count, allowed = len(request.request_ids), f"at most {MOST_ABORTED} ids"
            if count > MOST_ABORTED:
                raise InvalidRequest("request_ids", f"{count} ids", allowed)
            for request_id in request.request_ids:
                self._calls.abort(_key(request_id))
        return engine.AbortResponse()

    async def HealthCheck(  # noqa: N802
        self, request: engine.HealthCheckRequest, context: Any
    ) -> engine.HealthCheckResponse:
        """Whether new requests are welcome: not while this process drains or its Redis is away."""
        if self._ready():
            return engine.HealthCheckResponse(healthy=True, message="ready")
        return engine.HealthCheckResponse(healthy=False, message="no new requests are taken")

    async def GetModelInfo(  # noqa: N802
        self, request: engine.GetModelInfoRequest, context: Any
    ) -> engine.GetModelInfoResponse:
        """The model that is served, with its own sampling defaults, which a gateway fills in."""
        worker = self._target.worker
        return engine.GetModelInfoResponse(
            model_path=worker.model,
            served_model_name=worker.model,
            tokenizer_path=f"{_SERVED_HERE}/{worker.tokenizer_fingerprint}",
            is_generation=True,
            max_context_length=worker.max_context_length,
            max_req_input_len=worker.max_context_length - 1,
            vocab_size=worker.vocab_size,
            eos_token_ids=self._target.tokenizer.eos_token_ids,
            default_sampling_params_json=self._inference.offer.defaults_json(),
        )

    async def GetServerInfo(  # noqa: N802
        self, request: engine.GetServerInfoRequest, context: Any
    ) -> engine.GetServerInfoResponse:
        """What this orchestrator is; where tenants share it, the caller's own sessions."""
        now = time.time()
        return engine.GetServerInfoResponse(
            active_requests=self._sessions(),
            last_receive_timestamp=now,
            uptime_seconds=now - self._began,
            server_type="vllm-grpc",
            data_parallel_size=1,
            max_num_seqs=self._most_sessions,
            constrained_decoding_start=self._formats_begin(),
        )

    def _formats_begin(self) -> str:
        """Where the format of a prompt that ends in the model's thoughts begins."""
        known = self._target.tokenizer.reasoning
        told = known is not None and known.begin_id is not None and known.end_id is not None
        later = told and begins_later(self._inference.offer.served_model())
        return "after_reasoning" if later else "first_token"

    async def GetLoads(  # noqa: N802
        self, request: engine.GetLoadsRequest, context: Any
    ) -> engine.GetLoadsResponse:
        """How busy the orchestrator and its verifiers are, for a gateway with several workers."""
        return engine.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=self._version,
            dp_rank_count=1,
            loads=[] if request.dp_rank else [self._load()],
        )

    def _load(self) -> engine.SchedulerLoad:
        sessions = self._sessions()
        load = engine.SchedulerLoad(
            num_running_reqs=sessions,
            num_total_reqs=sessions,
            max_running_requests=self._most_sessions,
        )
        if not self._shared:
            waiting, held = self._inference.live.waiting, self._pool.memory()
            used = sum(report.kv_tokens_used for report in self._pool.reports(Role.VERIFIER))
            load.num_running_reqs, load.num_waiting_reqs = sessions - waiting, waiting
            load.num_used_tokens, load.max_total_num_tokens = used, held
            load.token_usage = used / held if held else 0.0
        return load

    def _sessions(self) -> int:
        """Sessions at work here; where tenants share this server, the caller's own."""
        if self._shared:
            return self._inference.sessions_of(current_tenant().name)
        return self._inference.active_sessions

    async def GetTokenizer(  # noqa: N802
        self, request: common.GetTokenizerRequest, context: Any
    ) -> None:
        """Tokenizer, chat template and generation config, as a model folder would hold them."""
        async with border(context):
            packed = await self._packed()
            async with reading(context, self._patience) as reader:
                for chunk in chunks(packed):
                    if not await reader.hears(chunk):
                        return

    async def _packed(self) -> bytes:
        """Packed once, in a thread; a caller that leaves does not cancel it."""
        if self._archive is None:
            packing = asyncio.to_thread(archive, self._target.tokenizer.bundle)
            self._archive = asyncio.ensure_future(packing)
        return await asyncio.shield(self._archive)

    # --- what is not served -----------------------------------------------------------

    async def Embed(self, request: engine.EmbedRequest, context: Any) -> NoReturn:  # noqa: N802
        """Not served."""
        await _unserved(context, "Embed: the model generates text and makes no embeddings")

    async def FlushCache(  # noqa: N802
        self, request: common.FlushCacheRequest, context: Any
    ) -> NoReturn:
        """Not served."""
        await _unserved(context, "FlushCache: what verifiers hold belongs to their sessions")

    async def StartProfile(  # noqa: N802
        self, request: common.StartProfileRequest, context: Any
    ) -> NoReturn:
        """Not served."""
        await _unserved(context, "StartProfile: there is no profiler; sessions are traced")

    async def StopProfile(  # noqa: N802
        self, request: common.StopProfileRequest, context: Any
    ) -> NoReturn:
        """Not served."""
        await _unserved(context, "StopProfile: there is no profiler; sessions are traced")

    async def SubscribeKvEvents(  # noqa: N802
        self, request: common.SubscribeKvEventsRequest, context: Any
    ) -> NoReturn:
        """Not served."""
        await _unserved(context, "SubscribeKvEvents: no cache is told of; ask GetLoads")


def _key(request_id: str) -> SessionKey:
    return SessionKey(current_tenant().name, session_id(request_id))


def _session(request_id: str) -> SessionKey:
    """A session without a name; an id that says how to speculate may be that of many requests."""
    if extensions.speaks(request_id):
        return SessionKey(current_tenant().name, SESSION_PREFIX + secrets.token_hex(16))
    return _key(request_id)


async def _unserved(context: Any, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, why)
    raise AssertionError("the call has ended")


@contextmanager
def _in_its_words() -> Iterator[None]:
    """Errors as they concern a gateway: its own fields, and no advice to resume."""
    try:
        yield
    except InvalidRequest as error:
        raise in_its_words(error) from None
    except tuple(_WORDS) as error:
        raise type(error)(_WORDS[type(error)]) from None
