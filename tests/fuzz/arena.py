"""A whole cluster in a thread of its own, and a caller that sends it anything.

Real servers, links, store and cores; the engine is a table, so that a message costs
next to nothing. Caches count their tokens, so that a leak shows.
"""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self, TypeVar

import grpc

from orchestrator.steering.config import Limits
from services.drafter.hypotheses.core import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.verifier.running.core import RunningCore
from tests.fake_engine import TableEngine
from tests.fuzz.engine import table_engine
from tests.fuzz.targets import CANARY, Target, raw_bytes, some_calls
from tests.integration.cluster import PATIENT, Worker, cluster, start_core, start_worker

LIMIT = 60.0
"""Seconds after which a call counts as hung."""
TOGETHER = 24
_LINGER = 0.005

Code = grpc.StatusCode
PROPER = {
    Code.OK, Code.INVALID_ARGUMENT, Code.ALREADY_EXISTS, Code.NOT_FOUND, Code.OUT_OF_RANGE,
    Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.DATA_LOSS, Code.FAILED_PRECONDITION,
}  # fmt: skip
"""What may be answered while nothing is away. UNAVAILABLE would mean that the front door
took what no worker can serve."""

_WRITTEN_TO = "Internal error from Core"
"""What grpc.aio itself says to a caller whose write came after the server's last word.
A server that says INTERNAL logs it, too."""

_SERVICES = (
    "paceline.v1.InferenceService",
    "vllm.grpc.engine.VllmEngine",
    "paceline.worker.v1.VerifierService",
    "paceline.worker.v1.DrafterService",
)

_T = TypeVar("_T")


@dataclass
class Answer:
    """How a call ended."""

    target: Target
    code: Any
    details: str


@dataclass
class Findings:
    """What was seen so far; `wrong` must stay empty."""

    messages: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def note(self, answer: Answer, sent: Sequence[bytes]) -> None:
        """Count a call; an improper answer is kept with what brought it."""
        self.messages += len(sent)
        ended = answer.details == _WRITTEN_TO
        how = "ended while it was written to" if ended else answer.code.name
        self.codes[f"{answer.target.service} {how}"] += 1
        unserved = answer.code is Code.UNIMPLEMENTED and not answer.target.served
        if answer.code not in PROPER and not ended and not unserved:
            seen = [data[:200].hex() for data in sent]
            self.complain(f"{answer.target.path}: {answer.code.name} {answer.details!r}: {seen}")

    def complain(self, what: str) -> None:
        """Something that must not be; the first hundred are kept."""
        if len(self.wrong) < 100:
            self.wrong.append(what)


class LogWatch(logging.Handler):
    """Complains of errors in the log, and of content in any line."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.DEBUG)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        """Called for every line of every logger."""
        line = record.getMessage()
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
        if record.levelno >= logging.ERROR:
            self._findings.complain(f"logged: {line} {trace}")
        if CANARY in line or CANARY in trace:
            self._findings.complain(f"content in the log of {record.name}")


class Arena:
    """The cluster and its caller, from `with` to its end. Methods may be called by any thread."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        self._watch = LogWatch(self.findings)
        root = logging.getLogger()
        self._level = root.level
        root.addHandler(self._watch)
        root.setLevel(logging.INFO)
        self._thread.start()
        assert self._ready.wait(LIMIT), "the cluster did not start"
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)
        logging.getLogger().removeHandler(self._watch)
        logging.getLogger().setLevel(self._level)

    def send(self, calls: Sequence[tuple[Target, list[bytes]]]) -> None:
        """Make all these calls, some at a time."""
        self._run(self._send(calls))

    def knock(self, attempts: Sequence[bytes]) -> None:
        """Write bytes that are no gRPC to every port."""
        self._run(self._knock(attempts))

    def settle(self) -> None:
        """Everything must come to rest, with nothing left, and a good request be served."""
        self._run(self._settle())

    def fuzz(self, random: Random, messages: int) -> None:
        """About so many messages, raw bytes among them."""
        self.send(some_calls(random, messages))
        self.knock([raw_bytes(random) for _ in range(messages // 50)])

    # --- in the thread ----------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._serve_until_stopped()
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._ready.set()

    async def _serve_until_stopped(self) -> None:
        self._engines = [table_engine(seed) for seed in range(2)]
        workers = await _start_cores(*self._engines)
        limits = Limits(detach_grace=1.0, deadline=LIMIT)
        options = {"limits": limits, "num_speculative_tokens": 4, "vllm_engine": True}
        async with cluster([workers[0]], [workers[1]], PATIENT, **options) as running:
            self._cluster, self._workers = running, workers
            addresses = [running.address] * 2 + [one.address for one in self._workers]
            self._addresses = dict(zip(_SERVICES, addresses, strict=True))
            self._channels = {
                name: grpc.aio.insecure_channel(address)
                for name, address in self._addresses.items()
            }
            self._expected = await self._good_answer()
            self._tasks = len(asyncio.all_tasks())
            self._ready.set()
            await self._stop.wait()
            for channel in self._channels.values():
                await channel.close()

    async def _send(self, calls: Sequence[tuple[Target, list[bytes]]]) -> None:
        gate = asyncio.Semaphore(TOGETHER)

        async def one(target: Target, messages: list[bytes]) -> None:
            async with gate:
                self.findings.note(await self._call(target, messages), messages)

        await asyncio.gather(*(one(*call) for call in calls))

    async def _call(self, target: Target, messages: list[bytes]) -> Answer:
        call = self._channels[target.service].stream_stream(target.path)(wait_for_ready=True)
        try:
            async with asyncio.timeout(LIMIT):
                reading = asyncio.create_task(_read_all(call))
                await _write_all(call, messages, _LINGER if target.link else 0.0)
                await reading
                return Answer(target, await call.code(), await call.details())
        except TimeoutError:
            self.findings.complain(f"{target.path} hung")
            call.cancel()
            return Answer(target, Code.CANCELLED, "no end")

    async def _knock(self, attempts: Sequence[bytes]) -> None:
        for number, data in enumerate(attempts):
            address = list(self._addresses.values())[number % len(self._addresses)]
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            with suppress(OSError):
                writer.write(data)
                await writer.drain()
            writer.close()
            self.findings.messages += 1

    async def _good_answer(self) -> tuple[int, ...]:
        done = await self._cluster.client.generate("abcde", temperature=0.0, max_tokens=9)
        return tuple(done.token_ids)

    async def _settle(self) -> None:
        try:
            async with asyncio.timeout(LIMIT):
                if await self._good_answer() != self._expected:
                    self.findings.complain("the good request is answered otherwise by now")
                while left := self._left():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self.findings.complain(f"left behind: {left}")

    def _left(self) -> str:
        """What sessions hold at the moment; empty = nothing."""
        held = {
            "drivers": self._cluster.inference.active_sessions,
            "assigned": sum(len(link.assigned) for link in self._cluster.pool.links()),
            "sessions": sum(worker.host.progress().sessions for worker in self._workers),
            "KV": sum(engine.kv_tokens_used for engine in self._engines),
            "tasks": max(0, len(asyncio.all_tasks()) - self._tasks - 4),
        }
        return ", ".join(f"{count} {what}" for what, count in held.items() if count)


async def _start_cores(target: TableEngine, draft: TableEngine) -> tuple[Worker, Worker]:
    drafters: dict[str, Any] = {"model": ModelDrafter(draft), "ngram": NgramDrafter()}
    verifier = await start_worker(
        lambda emit: RunningCore(target, emit=emit, worker_id="v1", absorb=emit.absorb),
        target.bundle,
    )
    return verifier, await start_core(HypothesisCore, drafters, "d1")


async def _read_all(call: Any) -> None:
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass


async def _write_all(call: Any, messages: Sequence[bytes], linger: float) -> None:
    """A call that the server has ended takes no more."""
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for data in messages:
            await call.write(data)
            await asyncio.sleep(0)
        await asyncio.sleep(linger)
        await call.done_writing()


def resident_mebibytes() -> float:
    """Of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
