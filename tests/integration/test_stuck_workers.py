"""A worker that is alive and gets nowhere, stuck in a command or in a step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrator.workers.link import LinkLimits
from services.contract.types import Progress
from services.contract.worker_messages import StartVerify
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from testkit.known_runner import KnownRunner
from testkit.known_text import bundle
from tests.integration.cluster import Cluster, Worker, cluster, serve
from tests.integration.known import read, request, stub, text
from tests.waiting import until

TOKENS = 40
SOON = LinkLimits(silence=20.0, engine_stall=3.0)


@dataclass
class Trouble:
    """Whoever opens the first session hangs in it; who that is depends on the workers' ports."""

    gate: threading.Event = field(default_factory=threading.Event)
    opened: list[tuple[str, str]] = field(default_factory=list)
    """Worker and session of each opening."""

    async def serve(self, name: str, kind: type[Verifier | Decoder] | None = None) -> Worker:
        host: WorkerHost[Any, Any] = WorkerHost(lambda emit: (kind or Verifier)(emit, name, self))
        return await serve(Served(host, host.describe(), bundle()))


class Verifier(KnownRunner):
    def __init__(self, emit: Any, name: str, trouble: Trouble) -> None:
        super().__init__(emit, name, 0.0)
        self._name, self._trouble = name, trouble

    def handle(self, link: int, command: Any, arrived: float) -> None:
        if isinstance(command, StartVerify):
            self._trouble.opened.append((self._name, command.session_id))
            if self._name == self._trouble.opened[0][0]:
                self._trouble.gate.wait()
        super().handle(link, command, arrived)


class Decoder(KnownRunner):
    """Hangs in the step behind the first tokens of the first session, as no other one does."""

    def __init__(self, emit: Any, name: str, trouble: Trouble) -> None:
        super().__init__(emit, name, 0.0)
        self._name, self._trouble = name, trouble

    def step(self) -> bool:
        if self.waiting:
            self._trouble.opened.append((self._name, ""))
            steps = sum(name == self._name for name, _ in self._trouble.opened)
            if steps == 3 and self._name == self._trouble.opened[0][0]:
                self._trouble.gate.wait()
        return super().step()

    def progress(self) -> Progress:
        """No prompt waits, which alone counts as queued at a verifier."""
        return replace(super().progress(), queued_tokens=0)


@pytest.fixture
def trouble() -> Iterator[Trouble]:
    made = Trouble()
    yield made
    made.gate.set()


async def _said(running: Cluster, *seeds: int) -> None:
    """Sessions of these seeds at once, each with its known text."""
    async with stub(running.address) as inference:
        calls = [inference.Generate(request(seed, TOKENS)) for seed in seeds]
        ended = await asyncio.gather(*map(read, calls))
    for seed, one in zip(seeds, ended, strict=True):
        assert (one.code, one.tokens) == (None, text(seed, TOKENS))


async def test_a_verifier_that_is_stuck_in_a_command_gets_no_new_sessions_and_loses_its_own(
    trouble: Trouble,
) -> None:
    verifiers = [await trouble.serve("v1"), await trouble.serve("v2")]
    async with cluster(verifiers, [], SOON) as running:
        first = asyncio.create_task(_said(running, 1))
        await until(lambda: any(link.stuck_s > 1.2 for link in running.pool.links()))
        [(bad, stuck)] = trouble.opened
        await _said(running, 2, 3, 4, 5, 6)
        assert [session for worker, session in trouble.opened if worker == bad] == [stuck]
        async with asyncio.timeout(60):
            await first
        assert stuck in [session for worker, session in trouble.opened if worker != bad]
        trouble.gate.set()


async def test_a_verifier_that_is_stuck_in_a_step_is_found_out_though_no_prompt_waits(
    trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    verifiers = [await trouble.serve(name, Decoder) for name in ("v1", "v2")]
    async with cluster(verifiers, [], SOON) as running:
        loop = asyncio.get_running_loop()
        first = asyncio.create_task(_said(running, 1))
        await until(lambda: len(trouble.opened) >= 3)
        began = loop.time()
        async with asyncio.timeout(60):
            await first
        assert loop.time() - began >= 3.0
        assert len({worker for worker, _ in trouble.opened}) == 2
        trouble.gate.set()
    assert "its engine has not come out of a step" in caplog.text
