"""Sessions at one orchestrator or several, as many at once as asked for."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

PROMPT = "the small drafter rides ahead and the large verifier checks " * 2


class Crowd:
    """As many sessions at a time as asked for last, each of them one after another."""

    def __init__(self, stubs: Sequence[pb_grpc.InferenceServiceStub], tokens: int) -> None:
        """`tokens`: the length of every session."""
        self._stubs, self._tokens = stubs, tokens
        self._sessions = 0
        self._places: dict[int, asyncio.Task[None]] = {}

    def resize(self, sessions: int) -> None:
        """What is too many ends with its session. Raises what a session failed with."""
        self._sessions = sessions
        for place in [place for place, task in self._places.items() if task.done()]:
            self._places.pop(place).result()
        for place in range(sessions):
            if place not in self._places:
                self._places[place] = asyncio.create_task(self._keep(place))

    async def leave(self) -> None:
        """Let every session come to its end. Raises what one failed with."""
        self._sessions = 0
        await asyncio.gather(*self._places.values())

    async def stop(self) -> None:
        """End every session that is left, at once. Raises what one failed with."""
        for task in self._places.values():
            task.cancel()
        for ended in await asyncio.gather(*self._places.values(), return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _keep(self, place: int) -> None:
        stub = self._stubs[place % len(self._stubs)]
        sampling = pb.SamplingParams(temperature=0.0, max_tokens=self._tokens, ignore_eos=True)
        while place < self._sessions:
            async for _ in stub.Generate(pb.GenerateRequest(prompt=PROMPT, sampling=sampling)):
                pass


@asynccontextmanager
async def crowd(addresses: Sequence[str], tokens: int) -> AsyncIterator[Crowd]:
    """A crowd at these orchestrators, in equal parts."""
    async with AsyncExitStack() as stack:
        stubs = [
            pb_grpc.InferenceServiceStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(address))
            )
            for address in addresses
        ]
        made = Crowd(stubs, tokens)
        try:
            yield made
        finally:
            await made.stop()
