"""The service of gateways by its bare stubs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as engine
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as engine_grpc

from services.contract.types import Role
from tests.integration.cluster import PATIENT, Cluster, cluster
from tests.integration.known import Ended
from tests.waiting import until

PROMPT_IDS = (87, 85, 62)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@asynccontextmanager
async def gateway_stub(
    address: str, options: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[engine_grpc.VllmEngineStub]:
    """The generated client, on a connection of its own."""
    alone = [*options, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=alone) as channel:
        yield engine_grpc.VllmEngineStub(channel)


@asynccontextmanager
async def gateway_front(
    *given: Any, narrow: Sequence[tuple[str, int]] = (), **options: Any
) -> AsyncIterator[tuple[Cluster, engine_grpc.VllmEngineStub]]:
    """A cluster that serves gateways, and that service of it."""
    made = cluster(*given, PATIENT, vllm_engine=True, **options)
    async with made as running, gateway_stub(running.address, narrow) as front:
        yield running, front


def asked(
    request_id: str = "", stream: bool = True, ids: tuple[int, ...] = PROMPT_IDS, **params: Any
) -> engine.GenerateRequest:
    """A request of some token ids, with what smg always says."""
    usual = {"top_p": 1.0, "repetition_penalty": 1.0, "skip_special_tokens": True, "n": 1}
    return engine.GenerateRequest(
        request_id=request_id,
        tokenized=engine.TokenizedInput(input_ids=ids),
        sampling_params=engine.SamplingParams(**usual | params),
        stream=stream,
    )


@dataclass
class Answered:
    """One answer: its chunks, its end (of several completions the last), or a status instead."""

    chunks: list[engine.GenerateStreamChunk] = field(default_factory=list)
    complete: engine.GenerateComplete | None = None
    error: Ended | None = None

    @property
    def tokens(self) -> list[int]:
        """What the chunks said."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def end(self) -> engine.GenerateComplete:
        """The last message of an answer that came to its end."""
        assert self.complete is not None, self.error
        return self.complete

    @property
    def refusal(self) -> Ended:
        """The status of one that did not."""
        assert self.error is not None, self.complete
        return self.error


async def answered(call: Any) -> Answered:
    """A call to its end."""
    answer = Answered()
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            if response.HasField("chunk"):
                answer.chunks.append(response.chunk)
            else:
                assert answer.complete is None or answer.complete.index != response.complete.index
                answer.complete = response.complete
    except grpc.aio.AioRpcError as error:
        answer.error = Ended.of(error)
    return answer


async def until_free(running: Cluster) -> None:
    """Wait until nothing is left of any session, here or at the workers."""
    await until(lambda: not running.inference.active_sessions)
    roles = (Role.VERIFIER, Role.DRAFTER)

    def held() -> int:
        reports = [report for role in roles for report in running.pool.reports(role)]
        return sum(report.sessions + report.kv_tokens_used for report in reports)

    await until(lambda: not held())


async def stored_keys(running: Cluster) -> list[bytes]:
    """Everything that the sessions' store holds."""
    from services.runtime.redis_client import open_client

    client = open_client(running.redis.url)
    try:
        return sorted(await client.keys("*"))
    finally:
        await client.aclose()
