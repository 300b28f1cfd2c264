"""A whole cluster in one event loop: real workers, real links, real gRPC, a real Redis server.

Processes are what is missing; the tests that need them start `paceline up`. All of it speaks
protocol 2, or 1 where PACELINE_PROTOCOL says so.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from paceline.client import Client

from orchestrator.frontdoor.authentication import TokensFile, anyone
from orchestrator.frontdoor.grpc.call_limits import Door
from orchestrator.frontdoor.grpc.servicer import InferenceServicer
from orchestrator.frontdoor.grpc.streaming import READ_PATIENCE
from orchestrator.frontdoor.inference import Inference
from orchestrator.recorder import Recorder
from orchestrator.session.options import Options
from orchestrator.store import RedisSessionStore, StoreOptions, connect
from orchestrator.workers.link import LinkLimits
from orchestrator.workers.pool import WorkerPool
from services.contract.types import Role, TokenizerBundle
from services.drafter.hypotheses import HypothesisCore
from services.drafter.local import LocalProposer
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph import GraphDrafter
from services.drafter.methods.graph.tree_growth import default_growth
from services.drafter.methods.model.ahead import AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.drafter.methods.text.text import TextDrafter
from services.engine.lending import Lending
from services.engine.native import NativeEngine
from services.engine.skip_mask import SkipMask
from services.engine.spec import ModelSpec
from services.engine.structure import structures_of
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.host import Emit, Outlet, WorkerHost
from services.runtime.serving import (
    Dialing,
    GrpcServer,
    Health,
    Served,
    ServingOptions,
    serve_worker,
)
from services.runtime.telemetry import Telemetry
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.models import VOCAB_SIZE, tiny_model, tiny_tokenizer
from tests.services.drafter_kit import FixedGrowth
from tests.services.text_kit import OTHER, byte_level

PROTOCOL = int(os.environ.get("PACELINE_PROTOCOL", "2"))

PATIENT = LinkLimits(silence=60.0, engine_stall=120.0)
"""For what takes its time on a busy machine."""

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "phi3")
PROMPT = "the small drafter rides ahead and the large verifier checks the small drafter"


@cache
def target(arch: str = "llama", seed: int = 0) -> Any:
    """The tiny model and the engine around it; engines share nothing but weights."""
    torch.set_num_threads(1)
    return tiny_model(arch, seed=seed)


def engine(arch: str = "llama", seed: int = 0, **options: Any) -> NativeEngine:
    return NativeEngine.from_model(target(arch, seed), tiny_tokenizer(), ModelSpec(arch, **options))


def reading_otherwise(arch: str = "llama", seed: int = 0) -> NativeEngine:
    """Another vocabulary of the same size, and so another model."""
    made = engine(arch, seed)
    made.bundle = byte_level(VOCAB_SIZE, OTHER)
    return made


def target_bundle() -> TokenizerBundle:
    bundle = engine().bundle
    assert bundle is not None
    return bundle


def looking_ahead(arch: str = "llama", seed: int = 0) -> NativeEngine:
    """With random look-ahead embeddings: their rows are often wrong, the first never is."""
    made = engine(arch, seed)
    known = target(arch, seed).get_input_embeddings()(torch.arange(300)).detach()
    made.give_soft_tokens(known[torch.tensor([7, 70, 170])])
    return made


def plain(prompt: str, tokens: int, arch: str = "llama") -> list[int]:
    """What transformers' own greedy decoding says."""
    return plain_after(tiny_tokenizer().encode(prompt), tokens, arch)


def plain_after(ids: list[int], tokens: int, arch: str = "llama") -> list[int]:
    """The same of a text in token ids."""
    text = torch.tensor([ids])
    with torch.no_grad():
        out = target(arch).generate(
            text, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return out[0, len(ids) :].tolist()


@dataclass
class Worker:
    """A served worker that the test may stop or tear away."""

    address: str
    stop: asyncio.Event
    task: asyncio.Task[int]
    host: WorkerHost[Any, Any]

    async def kill(self) -> None:
        """The links break, as when the process is killed."""
        self.task.cancel()
        await asyncio.wait([self.task])


@dataclass
class Cluster:
    client: Client
    inference: Inference
    pool: WorkerPool
    store: RedisSessionStore
    address: str
    redis: EmbeddedRedis
    verifiers: list[Worker] = field(default_factory=list)
    drafters: list[Worker] = field(default_factory=list)
    server: GrpcServer | None = None
    door: Door | None = None


async def start_worker(
    make_core: Callable[[Emit], Any], bundle: Any = None, serving: ServingOptions | None = None
) -> Worker:
    host: WorkerHost[Any, Any] = WorkerHost(make_core)
    return await serve(Served(host, host.describe(), bundle), listening=serving)


async def start_core(
    core: Callable[..., Any], own: Any, name: str, bundle: Any = None, serving=None, **options: Any
) -> Worker:
    """A worker with this core and what it works with: an engine, or drafting methods."""
    return await start_worker(
        lambda emit: core(own, emit=emit, worker_id=name, **options), bundle, serving
    )


async def serve(*roles: Served, listening: ServingOptions | None = None) -> Worker:
    """A worker of one role or several, known by the host of the first."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    options = listening or ServingOptions(grace=2.0)
    serving = serve_worker(options, *roles, on_ready=address.set_result, stop=stop)
    task = asyncio.create_task(serving)
    return Worker(await address, stop, task, roles[0].host)


async def start_verifier(
    name: str = "v1", arch: str = "llama", serving: ServingOptions | None = None, **options: Any
) -> Worker:
    loaded = engine(arch, **{"batch_invariant": None, **options})
    own = VerifierOptions(structures=structures_of(loaded))
    return await start_core(verifier_core, loaded, name, loaded.bundle, serving, options=own)


def verifier_core(
    loaded: Any, *, emit: Outlet, worker_id: str, options: VerifierOptions | None = None
) -> Any:
    """A verifier's core, which hears in the middle of a step."""
    return RunningCore(loaded, emit=emit, worker_id=worker_id, options=options, absorb=emit.absorb)


# One attention and one MLP of the two layers.
SKIPPED = SkipMask.of(2, attention=[1], mlp=[0])
# Random models are sure of nothing: all their candidates stay, and repetitions are merged.
BUSHY = GraphRules(64, 0.0, 0.0, repeat=0)
DRAFTERS: dict[str, Callable[[str, int], Any]] = {
    "model": lambda arch, seed: ModelDrafter(engine(arch, seed), trees=default_growth),
    "skip": lambda arch, seed: SkipDrafter(engine(arch, seed), SKIPPED, Exit(0.3)),
    "graph": lambda arch, seed: GraphDrafter(
        engine(arch, seed), BUSHY, plan=lambda: FixedGrowth(4, 6, 24)
    ),
    "lookahead": lambda arch, seed: LookaheadDrafter(looking_ahead(arch, seed)),
    "ngram": lambda *_: NgramDrafter(),
    "text": lambda arch, seed: TextDrafter(reading_otherwise(arch, seed), target_bundle()),
}


async def start_drafter(
    name: str = "d1",
    arch: str = "llama",
    seed: int = 0,
    methods: tuple[str, ...] = ("model",),
    lengthen: int = 0,
    serving: ServingOptions | None = None,
) -> Worker:
    drafters: dict[str, Any] = {method: DRAFTERS[method](arch, seed) for method in methods}
    if {"ngram", "model"} <= drafters.keys():
        drafters["ngram,model"] = InformedDrafter(
            drafters["ngram"], drafters["model"], AheadRules(), lengthen
        )
    return await start_core(HypothesisCore, drafters, name, serving=serving, lengthen=lengthen)


async def start_beside(
    name: str = "v1", arch: str = "llama", riding: bool = True, **options: Any
) -> Worker:
    """A verifier that drafts, too, by `skip`, `lookahead` and `ngram`."""
    loaded, lending = looking_ahead(arch, **options), Lending()
    drafters: dict[str, Any] = {
        "skip": SkipDrafter(loaded, SKIPPED, Exit(0.3), borrowing=Borrowing(lending, loaded)),
        "lookahead": LookaheadDrafter(loaded, borrowing=Borrowing(lending, loaded), riding=riding),
        "ngram": NgramDrafter(),
    }
    return await serve_beside(loaded, drafters, lending, name)


async def serve_beside(
    loaded: NativeEngine,
    drafters: dict[str, Any],
    lending: Lending,
    name: str = "v1",
    heard: Callable[[Any], None] = lambda event: None,
) -> Worker:
    """A verifier with these methods in its process.

    `heard`: is given what the verifier says.
    """

    def running(emit: Outlet) -> RunningCore:
        def tell(link: int, event: Any) -> None:
            heard(event)
            emit(link, event)

        return RunningCore(
            loaded,
            emit=tell,
            worker_id=name,
            options=VerifierOptions(lending=lending),
            proposer=LocalProposer(drafters),
            absorb=emit.absorb,
        )

    return await start_worker(running, loaded.bundle)


@asynccontextmanager
async def cluster(
    verifiers: list[Worker],
    drafters: list[Worker],
    patience: LinkLimits | None = None,
    keep: StoreOptions | None = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """An orchestrator in front of these workers, which it stops at the end.

    `patience`: when a worker counts as stalled; a busy test machine may need more.
    `keep`: how the store keeps sessions. Drafts are sent whether they pay or not, unless a
    pacing or `fallback=True` is among the options: beside tiny targets they seldom do, and
    the served default would find out. The rest is as `orchestrator` takes it.
    """
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(EmbeddedRedis())
        workers = (*verifiers, *drafters)
        try:
            yield await stack.enter_async_context(
                orchestrator("o1", redis, verifiers, drafters, patience, keep, **options)
            )
        finally:
            # Workers leave last, and in the same task that served them.
            await stack.aclose()
            for worker in workers:
                worker.stop.set()
            await asyncio.wait([worker.task for worker in workers])


@asynccontextmanager
async def orchestrator(
    name: str,
    redis: EmbeddedRedis,
    verifiers: list[Worker],
    drafters: list[Worker],
    patience: LinkLimits | None = None,
    keep: StoreOptions | None = None,
    dialing: Dialing | None = None,
    serving: ServingOptions | None = None,
    make_client: Callable[[str], Client] = Client,
    door: Door | None = None,
    read_patience: float = READ_PATIENCE,
    vllm_engine: bool = False,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """One of several orchestrators that share a Redis and the workers.

    With a `door` it asks who calls; with `vllm_engine` it serves gateways, too.
    """
    async with AsyncExitStack() as stack:
        store = await connect(redis.url, keep)
        stack.push_async_callback(store.close)
        pool = WorkerPool(name, limits=patience or LinkLimits(), dialing=dialing, protocol=PROTOCOL)
        pool.start()
        pool.set_addresses(Role.VERIFIER, [worker.address for worker in verifiers])
        pool.set_addresses(Role.DRAFTER, [worker.address for worker in drafters])
        known = await pool.ready(60)
        await pool.settle(60)
        telemetry = Telemetry.start("orchestrator")
        stack.callback(telemetry.shutdown)
        usual: dict[str, Any] = {"num_speculative_tokens": 8, "fallback": False}
        if not options.get("fallback"):
            # Tiny targets do not wait for a drafter, unless they are told to.
            usual["pacing"] = "eager" if PROTOCOL == 1 else "fixed"
        made = Options(name, **{**usual, **options})
        inference = Inference(pool, known, store, Recorder(telemetry), made)
        pool.attach(inference)
        door = door or Door(anyone, 4096)
        listening = serving or ServingOptions()
        health = await stack.enter_async_context(Health(listening))
        server = GrpcServer(listening, (door,), health)
        servicer = InferenceServicer(
            inference,
            pool,
            known,
            "test",
            shared=isinstance(door.identify, TokensFile),
            read_patience=read_patience,
        )
        servicer.add_to(server.grpc)
        if vllm_engine:
            from orchestrator.frontdoor.vllm_gateway.servicer import VllmEngineServicer

            gateways = VllmEngineServicer(
                inference,
                pool,
                known,
                "test",
                most_sessions=made.max_sessions,
                ready=lambda: health.ready,
                shared=isinstance(door.identify, TokensFile),
                read_patience=read_patience,
            )
            gateways.add_to(server.grpc)
        address = await server.start()
        client = await stack.enter_async_context(make_client(address))
        try:
            yield Cluster(
                client, inference, pool, store, address, redis, verifiers, drafters, server, door
            )
        finally:
            await client.close()
            await server.stop()
            await inference.drain(0.0)
            await pool.close()
