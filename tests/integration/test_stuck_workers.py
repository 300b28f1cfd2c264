"""A worker that is alive and gets nowhere, stuck in a command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.workers.link import LinkLimits
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

    async def serve(self, name: str) -> Worker:
        host: WorkerHost[Any, Any] = WorkerHost(lambda emit: Verifier(emit, name, self))
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
