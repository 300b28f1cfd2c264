"""Clients of one orchestrator: so many sessions at once, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

PROMPT = "the small drafter rides ahead and the large verifier checks " * 2


@asynccontextmanager
async def clients(address: str, sessions: int, tokens: int) -> AsyncIterator[None]:
    """While inside, `sessions` sessions of `tokens` tokens are open at any time."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        tasks = [asyncio.create_task(_ask_on(stub, tokens)) for _ in range(sessions)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            failures = await asyncio.gather(*tasks, return_exceptions=True)
            for failure in failures:
                if not isinstance(failure, asyncio.CancelledError):
                    raise RuntimeError(f"a client failed: {failure}")


async def _ask_on(stub: pb_grpc.InferenceServiceStub, tokens: int) -> None:
    sampling = pb.SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    request = pb.GenerateRequest(prompt=PROMPT, sampling=sampling)
    while True:
        async for _ in stub.Generate(request):
            pass
