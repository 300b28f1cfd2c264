"""The least loop as the bench starts it and asks it."""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from paceline import Method

from bench.loop_floor.orchestrator import GENERATE, REQUEST
from bench.options import NO_DRAFTS
from bench.peers.answers import PeerAnswer
from bench.prompts import BenchPrompt
from bench.runner import ORCHESTRATOR, Answer, Configuration
from services.cluster.figures import Measured
from services.cluster.specs import Site
from services.cluster.supervisor import ProcessSpec, Supervisor

FLOOR, FLOOR_DRAFTS = "least loop", "least loop, drafts"
_WORKERS = ("verifier", "drafter")


@asynccontextmanager
async def served_floor(
    supervisor: Supervisor,
    site: Site,
    synthetic: Path,
    change: Callable[[ProcessSpec], ProcessSpec],
    store: Mapping[str, int],
) -> AsyncIterator[list[Configuration]]:
    """The least loop, plainly and with drafts, by the same processes. Raises StartError.

    `change` as in `bench.synthetic.serving.served`; `supervisor` ends the processes. `store`:
    the process of the site's.
    """
    await supervisor.start([change(_spec(role, site, synthetic)) for role in _WORKERS])
    [address] = await supervisor.start([_spec(ORCHESTRATOR, site, synthetic)])
    own_pids = {role: supervisor.pids[f"{role}-floor"] for role in (*_WORKERS, ORCHESTRATOR)}
    pids = {**own_pids, **store}
    async with AsyncExitStack() as stack:
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        answer = _answers(channel)
        yield [
            Configuration(FLOOR, options=NO_DRAFTS, exact=False, answer=answer, pids=pids),
            Configuration(FLOOR_DRAFTS, exact=False, answer=answer, pids=pids),
        ]


def _answers(channel: grpc.aio.Channel) -> Answer:
    """Asks for one output, and gathers its tokens."""
    generate: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(GENERATE)
    numbers = count()

    async def answer(prompt: BenchPrompt, options: Mapping[str, Any]) -> Measured:
        drafts = not any(options.get(name) for name in NO_DRAFTS)
        world = zlib.crc32(prompt.text.encode())
        began = time.perf_counter()
        gathered = PeerAnswer(next(numbers), 1, 0, Method.GREEDY)
        async for chunk in generate(REQUEST.pack(world, options["max_tokens"], drafts)):
            tokens = memoryview(chunk).cast("I").tolist()
            gathered.add(time.perf_counter() - began, tokens, None)
        return gathered.finish(time.perf_counter() - began, "length")

    return answer


def _spec(role: str, site: Site, synthetic: Path) -> ProcessSpec:
    name = f"{role}-floor"
    ready = site.folder / f"{name}.ready"
    flags = {
        "--synthetic": synthetic,
        "--redis": site.redis,
        "--ready-file": ready,
        "--tether": site.owner,
    }
    argv = (sys.executable, "-P", "-m", "bench.loop_floor", role)
    given = [str(word) for pair in flags.items() for word in pair]
    return ProcessSpec(name, (*argv, *given), ready, site.folder / f"{name}.log")
