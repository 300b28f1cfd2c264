"""A step of a worker is one message for all sessions, and so is what it leads to."""

import asyncio
from typing import Any

import pytest

from orchestrator.store.delivery import OneServer
from services.contract.frames import DraftFrame, Grants, StepFrame
from services.contract.types import Role
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK
from services.drafter.hypotheses import HypothesisCore
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from services.runtime.serving.rpcs import RPCS
from testkit.known_runner import KnownRunner
from testkit.known_text import KnownDrafter, bundle
from tests.integration.cluster import PATIENT, cluster, serve, start_core

SESSIONS = 64
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class InStep(KnownRunner):
    """Steps when every session can take part."""

    def step(self) -> bool:
        return self.waiting >= SESSIONS and super().step()


class Counting:
    """A codec that notes the frames that go each way."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.sent: list[Any] = []
        self.received: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def requests(self, commands: Any) -> Any:
        self.sent += commands
        return self._codec.requests(commands)

    def decode_response(self, message: Any) -> Any:
        events = self._codec.decode_response(message)
        self.received += events
        return events


def sizes(kind: type, told: list[Any]) -> list[int]:
    """Of how many sessions each frame of this kind is."""
    return [len(frame.handles) // 4 for frame in told if isinstance(frame, kind)]


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> tuple[Counting, Counting]:
    judging, drafting = Counting(VERIFIER_LINK), Counting(DRAFTER_LINK)
    for role, codec in ((Role.VERIFIER, judging), (Role.DRAFTER, drafting)):
        monkeypatch.setitem(RPCS, role, RPCS[role]._replace(codec=codec))
    return judging, drafting


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commits each pipeline to the store held."""
    counted: list[int] = []
    execute = OneServer.execute

    async def counting(self, calls):
        counted.append(sum(call.script == "commit" for call in calls))
        return await execute(self, calls)

    monkeypatch.setattr(OneServer, "execute", counting)
    return counted


async def verifier(kind: type[KnownRunner], step_ms: float = 0.0):
    host: WorkerHost[Any, Any] = WorkerHost(lambda emit: kind(emit, "v1", step_ms))
    return await serve(Served(host, host.describe(), bundle()))


async def run_all(client, tokens: int) -> None:
    streams = [client.generate("one for all", max_tokens=tokens, **GREEDY) for _ in range(SESSIONS)]
    ends = await asyncio.gather(*(_end(stream) for stream in streams))
    assert {len(end.token_ids) for end in ends} == {tokens}


async def _end(stream):
    return await stream


async def test_a_step_is_one_frame_and_leads_to_few_batches_to_the_store_and_frames_of_grants(
    codecs, batches
):
    judging, _ = codecs
    steps = 120
    async with cluster([await verifier(InStep)], [], PATIENT) as running:
        await run_all(running.client, steps)
    assert sizes(StepFrame, judging.received) == [SESSIONS] * steps
    # Steps that come quickly are stored together, in a few batches: frames are read in between.
    stored = [count for count in batches if count]
    assert sum(stored) <= steps * SESSIONS
    assert len(stored) <= sum(stored) / 3
    # Sessions are opened with their first credit, and near its end a text needs no more.
    told = sizes(Grants, judging.sent)
    assert len(told) <= sum(told) / 3


async def test_what_a_drafter_drafts_in_a_step_is_one_frame_and_so_is_what_it_hears(codecs):
    judging, drafting = codecs
    steps = []

    class Stepping(HypothesisCore):
        def step(self) -> bool:
            steps.append(super().step())
            return steps[-1]

    drafter = await start_core(Stepping, {"known": KnownDrafter(0.5, 2, 5.0)}, "d1")
    async with cluster([await verifier(KnownRunner, 10.0)], [drafter], PATIENT) as running:
        await run_all(running.client, 100)
    drafts = sizes(DraftFrame, drafting.received)
    assert 0 < len(drafts) <= sum(steps)
    assert max(drafts) > SESSIONS // 4
    assert len(sizes(DraftFrame, judging.sent)) <= len(drafts)
    assert len(sizes(StepFrame, drafting.sent)) <= len(sizes(StepFrame, judging.received))
