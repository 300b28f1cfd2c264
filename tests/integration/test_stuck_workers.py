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
    """What befalls the verifier that a session comes to first, of those served with it.

    Which one that is depends on their ports. It hangs in opening a session, or forgets that it did.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    forgets: bool = False
    opened: list[tuple[str, str]] = field(default_factory=list)
    """Worker and session of each opening."""

    async def serve(self, name: str) -> Worker:
        def made(emit: Any) -> Verifier:
            return Verifier(emit, name, self)

        host: WorkerHost[Any, Any] = WorkerHost(made)
        return await serve(Served(host, host.describe(), bundle()))

    def meets(self, worker: str) -> bool:
        return bool(self.opened) and worker == self.opened[0][0]


class Verifier(KnownVerifier):
    def __init__(self, emit: Any, name: str, trouble: Trouble) -> None:
        def tell(link: int, event: Any) -> None:
            if isinstance(event, VerifyOpened) and trouble.forgets and trouble.meets(name):
                return
            emit(link, event)

        super().__init__(tell, name, 0.0)
        self._name, self._trouble = name, trouble

    def handle(self, link: int, command: VerifierCommand, arrived: float) -> None:
        if isinstance(command, OpenVerify):
            self._trouble.opened.append((self._name, command.session))
            if self._trouble.meets(self._name):
                self._trouble.gate.wait()
        super().handle(link, command, arrived)


@pytest.fixture
def trouble() -> Iterator[Trouble]:
    made = Trouble()
    made.gate.set()
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
        trouble.gate.clear()
        first = asyncio.create_task(_said(running, 1))
        await until(lambda: any(link.stuck_s > 1.2 for link in running.pool.links()))
        [(bad, stuck)] = trouble.opened
        await _said(running, 2, 3, 4, 5, 6)
        assert [session for worker, session in trouble.opened if worker == bad] == [stuck]
        async with asyncio.timeout(60):
            await first
        assert stuck in [session for worker, session in trouble.opened if worker != bad]
        trouble.gate.set()


async def test_a_session_that_its_verifier_forgot_to_open_goes_to_another(trouble: Trouble) -> None:
    trouble.forgets = True
    limits = Limits(opening_wait=0.3)
    verifiers = [await trouble.serve("v1"), await trouble.serve("v2")]
    async with cluster(verifiers, [], QUICK, limits=limits) as running:
        async with asyncio.timeout(60):
            await _said(running, 1)
    (bad, session), (good, same) = trouble.opened
    assert (bad != good, session) == (True, same)


async def test_one_that_forgot_it_once_is_asked_again_where_there_is_no_other(
    trouble: Trouble,
) -> None:
    trouble.forgets = True
    limits = Limits(opening_wait=0.3)
    async with cluster([await trouble.serve("v1")], [], QUICK, limits=limits) as running:
        session = asyncio.create_task(_said(running, 1))
        async with asyncio.timeout(60):
            await until(lambda: trouble.opened)
            trouble.forgets = False
            await session
        assert len(trouble.opened) == 2
