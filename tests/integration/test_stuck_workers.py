"""Workers that are alive and get nowhere: in a command, or with a session that never opens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.core.state import Limits
from orchestrator.workers.link import LinkLimits
from services.contract.types import OpenVerify, VerifierCommand, VerifyOpened
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from testkit.load_workers import KnownVerifier, bundle
from tests.integration.cluster import Cluster, Worker, cluster, serve
from tests.integration.known import read, request, stub, text
from tests.waiting import until

TOKENS = 40
SOON = LinkLimits(silence=20.0, engine_stall=3.0)
QUICK = LinkLimits(silence=20.0)


@dataclass
class Trouble:
    """A verifier that can be made to hang in opening a session, or to forget that it did."""

    name: str
    opened: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    forgets: bool = False

    def make(self, emit: Any) -> Verifier:
        return Verifier(emit, self)

    async def serve(self) -> Worker:
        host: WorkerHost[Any, Any] = WorkerHost(self.make)
        return await serve(Served(host, host.describe(), bundle()))


class Verifier(KnownVerifier):
    def __init__(self, emit: Any, trouble: Trouble) -> None:
        def tell(link: int, event: Any) -> None:
            if not (trouble.forgets and isinstance(event, VerifyOpened)):
                emit(link, event)

        super().__init__(tell, trouble.name, 0.0)
        self._trouble = trouble

    def handle(self, link: int, command: VerifierCommand, arrived: float) -> None:
        if isinstance(command, OpenVerify):
            self._trouble.opened.append(command.session)
            self._trouble.gate.wait()
        super().handle(link, command, arrived)


@pytest.fixture
def bad() -> Iterator[Trouble]:
    """By its name it comes first among equals."""
    trouble = Trouble("v1")
    trouble.gate.set()
    yield trouble
    trouble.gate.set()


@pytest.fixture
def good() -> Trouble:
    trouble = Trouble("v2")
    trouble.gate.set()
    return trouble


async def _said(running: Cluster, *seeds: int) -> None:
    """Sessions of these seeds at once, each with its known text."""
    async with stub(running.address) as inference:
        calls = [inference.Generate(request(seed, TOKENS)) for seed in seeds]
        ended = await asyncio.gather(*map(read, calls))
    for seed, one in zip(seeds, ended, strict=True):
        assert (one.code, one.tokens) == (None, text(seed, TOKENS))


async def test_a_verifier_that_is_stuck_in_a_command_gets_no_new_sessions_and_loses_its_own(
    bad: Trouble, good: Trouble
):
    async with cluster([await bad.serve(), await good.serve()], [], SOON) as running:
        bad.gate.clear()
        first = asyncio.create_task(_said(running, 1))
        await until(lambda: any(link.stuck_s > 1.2 for link in running.pool.links()))
        [stuck] = bad.opened
        await _said(running, 2, 3, 4, 5, 6)
        assert bad.opened == [stuck]
        async with asyncio.timeout(20):
            await first
        assert stuck in good.opened
        bad.gate.set()


async def test_a_session_that_its_verifier_forgot_to_open_goes_to_another(bad, good):
    bad.forgets = True
    limits = Limits(opening_wait=0.3)
    async with cluster(
        [await bad.serve(), await good.serve()], [], QUICK, limits=limits
    ) as running:
        async with asyncio.timeout(20):
            await _said(running, 1)
        assert bad.opened == good.opened


async def test_one_that_forgot_it_once_is_asked_again_where_there_is_no_other(bad: Trouble):
    bad.forgets = True
    limits = Limits(opening_wait=0.3)
    async with cluster([await bad.serve()], [], QUICK, limits=limits) as running:
        session = asyncio.create_task(_said(running, 1))
        async with asyncio.timeout(20):
            while not bad.opened:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            bad.forgets = False
            await session
        assert len(bad.opened) == 2
