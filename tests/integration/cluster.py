"""A whole cluster in one event loop: real workers, real links, real gRPC, a real Redis server.

Processes are what is missing; the tests that need them start `paceline up`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from paceline.client import Client
from paceline.v1 import inference_pb2_grpc as pb_grpc

from orchestrator.inference import Inference, Options
from orchestrator.recorder import Recorder
from orchestrator.servicer import InferenceServicer
from orchestrator.sessions import EmbeddedRedis, RedisSessionStore, connect
from orchestrator.workers.link import LinkLimits
from orchestrator.workers.pool import WorkerPool
from services.common.engine import Engine, ModelSpec
from services.common.host import Emit, WorkerHost
from services.common.serving import GrpcServer, ServingOptions, serve_worker
from services.common.telemetry import Telemetry
from services.common.types import Role
from services.drafter.core import DrafterCore
from services.drafter.model import ModelDrafter
from services.drafter.ngram import NgramDrafter
from services.verifier.core import VerifierCore
from tests.models import tiny_model, tiny_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "phi3")
PROMPT = "the small drafter rides ahead and the large verifier checks the small drafter"


@cache
def target(arch: str = "llama", seed: int = 0) -> Any:
    """The tiny model and the engine around it; engines share nothing but weights."""
    torch.set_num_threads(1)
    return tiny_model(arch, seed=seed)


def engine(arch: str = "llama", seed: int = 0, **options: Any) -> Engine:
    return Engine.from_model(target(arch, seed), tiny_tokenizer(), ModelSpec(arch, **options))


def plain(prompt: str, tokens: int, arch: str = "llama") -> list[int]:
    """What transformers' own greedy decoding says."""
    ids = torch.tensor([tiny_tokenizer().encode(prompt)])
    with torch.no_grad():
        out = target(arch).generate(
            ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return out[0, ids.shape[1] :].tolist()


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
    verifiers: list[Worker] = field(default_factory=list)
    drafters: list[Worker] = field(default_factory=list)


async def start_worker(make_core: Callable[[Emit], Any], bundle: Any = None) -> Worker:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    host: WorkerHost[Any, Any] = WorkerHost(make_core)
    serving = serve_worker(
        ServingOptions(grace=2.0),
        host,
        host.describe(),
        bundle,
        on_ready=address.set_result,
        stop=stop,
    )
    task = asyncio.create_task(serving)
    return Worker(await address, stop, task, host)


async def start_verifier(name: str = "v1", arch: str = "llama", **options: Any) -> Worker:
    loaded = engine(arch, **options)
    return await start_worker(
        lambda emit: VerifierCore(loaded, emit=emit, worker_id=name), loaded.bundle
    )


async def start_drafter(
    name: str = "d1", arch: str = "llama", seed: int = 0, methods: tuple[str, ...] = ("model",)
) -> Worker:
    drafters: dict[str, Any] = {}
    for method in methods:
        drafters[method] = ModelDrafter(engine(arch, seed)) if method == "model" else NgramDrafter()
    return await start_worker(lambda emit: DrafterCore(drafters, emit=emit, worker_id=name))


@asynccontextmanager
async def cluster(
    verifiers: list[Worker],
    drafters: list[Worker],
    patience: LinkLimits | None = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """An orchestrator in front of these workers, which it stops at the end.

    `patience`: when a worker counts as stalled; a busy test machine may need more.
    Drafts are sent whether they pay or not, unless `fallback=True` is among the options:
    beside tiny targets they seldom do.
    """
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(EmbeddedRedis())
        store = await connect(redis.url)
        stack.push_async_callback(store.close)
        pool = WorkerPool("o1", limits=patience or LinkLimits())
        pool.start()
        pool.set_addresses(Role.VERIFIER, [worker.address for worker in verifiers])
        pool.set_addresses(Role.DRAFTER, [worker.address for worker in drafters])
        known = await pool.ready(20)
        await pool.settle(5)
        telemetry = Telemetry.start("test", role="orchestrator")
        stack.callback(telemetry.shutdown)
        made = Options("o1", **{"num_speculative_tokens": 8, "fallback": False, **options})
        inference = Inference(pool, known, store, Recorder(telemetry), made)
        pool.attach(inference)
        server = GrpcServer(ServingOptions())
        servicer = InferenceServicer(inference, pool, known, "test", made.method)
        pb_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
        address = await server.start()
        client = await stack.enter_async_context(Client(address))
        try:
            yield Cluster(client, inference, pool, store, address, verifiers, drafters)
        finally:
            await client.close()
            await server.stop()
            await inference.drain(0.0)
            await pool.close()
            for worker in (*verifiers, *drafters):
                worker.stop.set()
            await asyncio.wait([worker.task for worker in (*verifiers, *drafters)])
