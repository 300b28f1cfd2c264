"""An orchestrator process: settings → store, workers, telemetry → served."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version

from orchestrator.frontdoor import vllm_gateway
from orchestrator.frontdoor.admission import Work
from orchestrator.frontdoor.authentication import TokensFile, anyone
from orchestrator.frontdoor.draining import Grace, drain
from orchestrator.frontdoor.grpc.call_limits import Door
from orchestrator.frontdoor.grpc.servicer import InferenceServicer
from orchestrator.frontdoor.inference import Inference
from orchestrator.frontdoor.response_formats import ResponseFormats
from orchestrator.recorder import Recorder, watch_memory
from orchestrator.session.options import Options
from orchestrator.session.ranges import MAX_REQUEST_BYTES
from orchestrator.settings import OrchestratorSettings
from orchestrator.steering.config import Limits
from orchestrator.store import RedisSessionStore, StoreOptions, WriterOptions, connect
from orchestrator.store.store_health import watch
from orchestrator.workers.discovery import Subsetting, discover
from orchestrator.workers.link import LinkLimits
from orchestrator.workers.peers import Peer, Peers
from orchestrator.workers.pool import Target, WorkerPool
from orchestrator.workers.subset import Member
from services.contract.errors import StartError
from services.contract.types import Role
from services.grammar.vetting import Vetting
from services.runtime import serving
from services.runtime.atomic_file import write_line
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.memory import keep_little
from services.runtime.outage import Outage
from services.runtime.redis_client import checked_url
from services.runtime.registry import WorkerRegistry
from services.runtime.serving import GrpcServer, Health
from services.runtime.serving.options import host_port, is_loopback
from services.runtime.tasks import end
from services.runtime.telemetry import Telemetry, names
from services.runtime.telemetry.loop_lag import LoopLag

log = logging.getLogger(__name__)

SETTLE_TIMEOUT = 3.0
CALLS_PER_SESSION = 4
# Of each message that waits for its turn; beyond them, a message comes at a MiB a round trip.
UNREAD_BYTES = 256 * 1024
# Objects made, and younger collections, before one of each age.
COLLECT_AFTER = (20_000, 20, 20)


def run(settings: OrchestratorSettings) -> int:
    """Serve until SIGTERM or SIGINT. Raises StartError when it cannot start."""
    keep_little()
    return serving.run(_serve(settings))


async def _serve(settings: OrchestratorSettings) -> int:
    # Now, not after the wait for a verifier: what could not be served is refused.
    serving.server_credentials(settings.serving_options())
    if settings.redis is not None:
        checked_url(settings.redis)
    if settings.vllm_engine:
        vllm_gateway.require()
    work = Work(settings.tenant_share) if settings.tokens_file is not None else None
    stop, door, grace = serving.stop_on_signals(), _door(settings, work), Grace(settings.grace)
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(Health(settings.serving_options()))
        telemetry = Telemetry.start(
            "orchestrator",
            settings.orchestrator_id,
            metrics_port=settings.metrics_port,
            metrics_host=settings.metrics_host,
            metrics_tls=settings.metrics_contexts(),
        )
        stack.callback(telemetry.shutdown, grace.step)
        url = settings.redis or await _embedded(stack)
        loop_lag = LoopLag(telemetry)
        loop_lag.start()
        stack.callback(loop_lag.stop)
        recorder = Recorder(telemetry)
        store = await _store(settings, url, recorder)
        stack.push_async_callback(store.close, grace.step)
        pool = _pool(settings, recorder)
        stack.push_async_callback(pool.close)
        pool.start()
        registry_away = Outage()
        _show(telemetry, door, store, registry_away, pool)
        watch_memory(telemetry, pool.reports)
        fixed = {
            Role.VERIFIER: settings.verifier_addresses,
            Role.DRAFTER: settings.drafter_addresses,
        }
        subsetting = await _subsetting(settings, url, stack)
        discovery = asyncio.create_task(
            discover(pool, WorkerRegistry(url), fixed, registry_away, subsetting),
            name="discovery",
        )
        stack.push_async_callback(end, discovery)
        watching = asyncio.create_task(
            watch(store, health, settings.store_silence), name="store watch"
        )
        stack.push_async_callback(end, watching)
        await health.started()
        ready = asyncio.create_task(pool.ready(settings.start_timeout))
        if not await _before(stop, ready):
            return 0
        await pool.settle(SETTLE_TIMEOUT)
        forms = ResponseFormats(Vetting(settings.form_bounds(), settings.form_processes), work)
        stack.callback(forms.close)
        options = _options(settings)
        inference = Inference(pool, ready.result(), store, recorder, options, forms, work)
        pool.attach(inference)
        for warning in inference.offer.defaults.warnings:
            log.warning("%s", warning)
        _spare_the_collector()
        await _answer(settings, door, inference, pool, health, stop)
    return 0


def _show(
    telemetry: Telemetry, door: Door, store: RedisSessionStore, registry: Outage, pool: WorkerPool
) -> None:
    """What is not counted but read, whenever somebody collects it."""
    telemetry.gauge(names.STREAMS, lambda: [(door.streams.total, ())])
    telemetry.gauge(names.STORE_AWAY, lambda: [(max(store.away_s, registry.seconds), ())])
    telemetry.gauge(
        names.CONNECTED_WORKERS, lambda: [(pool.connected(role), (role.value,)) for role in Role]
    )


def _door(settings: OrchestratorSettings, work: Work | None = None) -> Door:
    """Who may come in. Raises StartError where that would be everybody on a network."""
    max_calls = settings.max_calls or CALLS_PER_SESSION * settings.max_sessions
    if settings.tokens_file is not None:
        return Door(TokensFile(settings.tokens_file), max_calls, work)
    open_to_all = settings.tls_ca is None and not is_loopback(host_port(settings.host, 0))
    if open_to_all and not settings.insecure:
        raise StartError(
            f"tokens_file: without it anybody who reaches {settings.host} may generate; give it, "
            "or tls_ca, or allow that with insecure"
        )
    return Door(anyone, max_calls)


def _spare_the_collector() -> None:
    """What was made by now stays; rounds make little that only the collector could free."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _answer(
    settings: OrchestratorSettings,
    door: Door,
    inference: Inference,
    pool: WorkerPool,
    health: Health,
    stop: asyncio.Event,
) -> None:
    """Serve clients until told to stop."""
    serving_options = replace(
        settings.serving_options(), max_request_bytes=MAX_REQUEST_BYTES, unread_bytes=UNREAD_BYTES
    )
    server = GrpcServer(serving_options, (door,), health)
    assert pool.target is not None
    servicer = InferenceServicer(
        inference,
        pool,
        pool.target,
        version("paceline"),
        shared=settings.tokens_file is not None,
        read_patience=settings.read_patience,
    )
    services = [servicer.add_to(server.grpc)]
    if settings.vllm_engine:
        from orchestrator.frontdoor.vllm_gateway.servicer import VllmEngineServicer

        gateways = VllmEngineServicer(
            inference,
            pool,
            pool.target,
            version("paceline"),
            most_sessions=settings.max_sessions,
            ready=lambda: health.ready,
            shared=settings.tokens_file is not None,
            read_patience=settings.read_patience,
        )
        services.append(gateways.add_to(server.grpc))
    address = await server.start(*services)
    log.info("orchestrator %s serves on %s", settings.orchestrator_id, address)
    if settings.ready_file is not None:
        write_line(settings.ready_file, address)
    await stop.wait()
    await drain(server, door, inference, Grace(settings.grace))


async def _embedded(stack: AsyncExitStack) -> str:
    server = EmbeddedRedis()
    await stack.enter_async_context(server)
    return server.url


async def _store(settings: OrchestratorSettings, url: str, recorder: Recorder) -> RedisSessionStore:
    options = StoreOptions(
        ttl_ms=round(1e3 * settings.session_ttl),
        finished_ttl_ms=round(1e3 * settings.finished_ttl),
        lease_ms=round(1e3 * settings.lease),
        relaxed=settings.durability == "relaxed",
    )
    patience = WriterOptions(patience_s=settings.store_patience, replicas=settings.store_replicas)
    return await connect(url, options, patience, recorder.dropped_write, recorder.fenced_write)


def _pool(settings: OrchestratorSettings, recorder: Recorder) -> WorkerPool:
    limits = LinkLimits(silence=settings.worker_silence, engine_stall=settings.engine_stall)
    return WorkerPool(
        settings.orchestrator_id,
        model=settings.model,
        limits=limits,
        dialing=settings.dialing(),
        on_states=recorder.states,
    )


async def _subsetting(
    settings: OrchestratorSettings, url: str, stack: AsyncExitStack
) -> Subsetting | None:
    """How to take a part of the workers, if asked for: others then know of this orchestrator."""
    if not settings.worker_subset:
        return None
    me = Member(settings.orchestrator_id, settings.zone)
    await stack.enter_async_context(Peer(url, me))
    return Subsetting(me, settings.worker_subset, Peers(url))


async def _before(stop: asyncio.Event, task: asyncio.Task[Target]) -> bool:
    """Wait for the task; False if the process was told to stop first."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        return False
    return True


def _options(settings: OrchestratorSettings) -> Options:
    limits = Limits(
        deadline=settings.deadline,
        detach_grace=settings.detach_grace,
        verifier_wait=settings.verifier_wait,
        verdict_wait=settings.verdict_wait,
        opening_wait=settings.opening_wait,
    )
    return Options(
        owner=settings.orchestrator_id,
        method=settings.method,
        pacing=settings.pacing,
        num_speculative_tokens=settings.num_speculative_tokens,
        max_sessions=settings.max_sessions,
        max_tokens_in_flight=settings.max_tokens_in_flight,
        logprobs_kept=settings.logprobs_kept,
        logprobs_memory=settings.logprobs_memory * 2**20,
        records_memory=settings.records_memory * 2**20,
        ended_s=settings.finished_ttl,
        idle_s=settings.session_ttl,
        limits=limits,
        tenant_key=settings.tenant_key.get_secret_value().encode() if settings.tenant_key else b"",
    )
