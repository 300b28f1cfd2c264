"""The real gateway in front of an orchestrator of this process, where all it asks is overheard."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import openai
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from orchestrator.core.state import Limits
from orchestrator.frontdoor.vllm_gateway import servicer
from orchestrator.frontdoor.vllm_gateway.servicer import VllmEngineServicer
from services.engine.structure import structures_of
from services.verifier.core import VerifierCore
from services.verifier.options import VerifierOptions
from tests.docs.test_tables import Table, tables
from tests.gateway.openai_kit import GUIDE, gateway
from tests.integration.cluster import (
    PATIENT,
    Cluster,
    Worker,
    cluster,
    engine,
    start_core,
    start_drafter,
)

OWN_DEFAULTS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.625,
    "top_p": 0.75,
    "top_k": 40,
    "repetition_penalty": 1.25,
}
"""The target's generation config."""
CHAT = [{"role": "user", "content": "what does the law say?"}]
METHODS = ("Generate", "HealthCheck", "GetLoads", "SubscribeKvEvents", "GetModelInfo")


@dataclass
class Ears:
    """What reached the engine."""

    asked: list[vllm.GenerateRequest] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def open(self) -> Iterator[None]:
        with ExitStack() as stack:
            heard = patch.object(servicer, "list_lengths", self._noting(servicer.list_lengths))
            stack.enter_context(heard)
            for name in METHODS:
                own = self._noting_call(name, getattr(VllmEngineServicer, name))
                stack.enter_context(patch.object(VllmEngineServicer, name, own))
            yield

    def _noting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def noted(request: vllm.GenerateRequest) -> Any:
            self.asked.append(request)
            return read(request)

        return noted

    def _noting_call(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(service: Any, request: Any, context: Any) -> Any:
            self.called.append(name)
            self.metadata.append(dict(context.invocation_metadata()))
            return await method(service, request, context)

        return noted


@dataclass
class Front:
    """The gateway's client beside the orchestrator behind it."""

    running: Cluster
    client: openai.AsyncOpenAI
    model: str
    ears: Ears

    async def chat(self, **params: Any) -> Any:
        """A chat completion."""
        self.ears.asked.clear()
        return await self.client.chat.completions.create(
            model=self.model, **{"messages": CHAT, "max_tokens": 4} | params
        )

    async def complete(self, **params: Any) -> Any:
        """A completion of a text."""
        self.ears.asked.clear()
        return await self.client.completions.create(
            model=self.model, **{"prompt": "the law", "max_tokens": 4} | params
        )

    @property
    def asked(self) -> vllm.SamplingParams:
        """The parameters of the one request that came."""
        [request] = self.ears.asked
        return request.sampling_params


@asynccontextmanager
async def front_of(log: Path, *flags: str, key: str = "none") -> AsyncIterator[Front]:
    """`flags` are the gateway's; `key` is what its clients show."""
    # Drafts of another model, so that not all of them are taken.
    verifiers, drafters = [await _verifier()], [await start_drafter(seed=3)]
    ears, lasting = Ears(), Limits(detach_grace=500.0)
    with ears.open():
        async with cluster(
            verifiers, drafters, PATIENT, vllm_engine=True, limits=lasting
        ) as running:
            made = gateway(running.address, log, *flags, key=key)
            front = await asyncio.to_thread(made.__enter__)
            try:
                async with front.async_client() as client:
                    yield Front(running, client, front.model, ears)
            finally:
                await asyncio.to_thread(made.__exit__, None, None, None)


async def _verifier() -> Worker:
    loaded = engine()
    bundle = replace(loaded.bundle, generation_config_json=json.dumps(OWN_DEFAULTS))
    own = VerifierOptions(structures=structures_of(loaded))
    return await start_core(VerifierCore, loaded, "v1", bundle, options=own)


def rows_under(heading: str) -> Table:
    """The rows of the page's table whose first heading is this."""
    [found] = [table for table in tables(GUIDE.read_text("utf-8")) if table[0][0] == heading]
    return found[1:]
