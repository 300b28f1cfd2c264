"""Sessions at several orchestrators, more and fewer over time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import inference_pb2_grpc as pb_grpc

from research.load.clients import PROMPT
from services.contract.errors import StartError


@dataclass(frozen=True, slots=True)
class Phase:
    """So many sessions at a time, for so long."""

    sessions: int
    seconds: float


def parse_phases(text: str) -> tuple[Phase, ...]:
    """The phases of `0:30,8:60`; raises StartError."""
    phases = []
    for part in text.split(","):
        sessions, _, seconds = part.partition(":")
        try:
            phase = Phase(int(sessions), float(seconds))
        except ValueError:
            raise StartError(f"--phases: {part!r} is not SESSIONS:SECONDS") from None
        if phase.sessions < 0 or not 0 < phase.seconds < float("inf"):
            raise StartError(f"--phases: {part!r}: sessions from 0 on, for more than 0 seconds")
        phases.append(phase)
    return tuple(phases)


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

    def stop(self) -> None:
        """End every session that is left, at once."""
        for task in self._places.values():
            task.cancel()

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
            await made.leave()
        finally:
            made.stop()


async def go_through(phases: Sequence[Phase], made: Crowd) -> None:
    """One phase after another."""
    for phase in phases:
        made.resize(phase.sessions)
        await asyncio.sleep(phase.seconds)
