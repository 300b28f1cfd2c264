"""A step of a worker is one message for all sessions, and so is what it leads to."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from orchestrator.store.delivery import OneServer
from services.contract.types import Draft, Role, Verdict, Verify
from services.contract.wire import DRAFTER_LINK, VERIFIER_LINK
from services.drafter.core import DrafterCore
from services.runtime.host import WorkerHost
from services.runtime.serving import Served
from services.runtime.serving.rpcs import RPCS
from testkit.known_text import KnownDrafter, bundle
from testkit.known_verifier import KnownVerifier
from tests.integration.cluster import PATIENT, cluster, serve

SESSIONS = 64
GREEDY = {"temperature": 0.0, "ignore_eos": True}


class InStep(KnownVerifier):
    """Steps when every session has a block for it."""

    def step(self) -> bool:
        return self.waiting >= SESSIONS and super().step()


class Counting:
    """A codec that notes how many of each kind every message holds."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self.messages: list[Counter[type]] = []

    def _note(self, members: Any) -> None:
        self.messages.append(Counter(map(type, members)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def requests(self, commands: Any) -> Any:
        self._note(commands)
        return self._codec.requests(commands)

    def decode_response(self, message: Any) -> Any:
        events = self._codec.decode_response(message)
        self._note(events)
        return events

    def counts(self, kind: type) -> list[int]:
        return [message[kind] for message in self.messages if message[kind]]


@pytest.fixture
def codecs(monkeypatch: pytest.MonkeyPatch) -> tuple[Counting, Counting]:
    judging, drafting = Counting(VERIFIER_LINK), Counting(DRAFTER_LINK)
    for role, codec in ((Role.VERIFIER, judging), (Role.DRAFTER, drafting)):
        monkeypatch.setitem(RPCS, (role, 1), RPCS[role, 1]._replace(codec=codec))
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


async def verifier(kind: type[KnownVerifier]):
    host: WorkerHost[Any, Any] = WorkerHost(lambda emit: kind(emit, "v1", 0.0))
    return await serve(Served(host, host.describe(), bundle()))


async def run_all(client, tokens: int) -> None:
    streams = [client.generate("one for all", max_tokens=tokens, **GREEDY) for _ in range(SESSIONS)]
    ends = await asyncio.gather(*(_end(stream) for stream in streams))
    assert {len(end.token_ids) for end in ends} == {tokens}


async def _end(stream):
    return await stream


def of_whole_steps(counts: list[int]) -> int:
    """How many steps were told, none in pieces; what piled up may have gone as one."""
    assert all(count % SESSIONS == 0 for count in counts), counts
    return sum(counts) // SESSIONS


async def test_a_burst_of_verdicts_leads_to_one_message_of_verifies_and_one_batch_to_the_store(
    codecs, batches
):
    judging, _ = codecs
    rounds = 12
    async with cluster([await verifier(InStep)], [], PATIENT) as running:
        await run_all(running.client, rounds)
    assert of_whole_steps(judging.counts(Verdict)) == rounds
    # The first two of each leave as the sessions are opened, one by one.
    together = [count for count in judging.counts(Verify) if count >= SESSIONS]
    assert of_whole_steps(together) >= rounds - 3
    assert of_whole_steps([count for count in batches if count]) == rounds


async def test_a_step_of_the_drafter_is_one_message(codecs):
    _, drafting = codecs
    steps = []

    class Stepping(DrafterCore):
        def step(self) -> bool:
            steps.append(super().step())
            return steps[-1]

    method = KnownDrafter(0.5, 2, 5.0)
    host: WorkerHost[Any, Any] = WorkerHost(
        lambda emit: Stepping({"known": method}, emit=emit, worker_id="d1")
    )
    drafter = await serve(Served(host, host.describe()))
    async with cluster([await verifier(KnownVerifier)], [drafter], PATIENT) as running:
        await run_all(running.client, 12)
    messages = drafting.counts(Draft)
    assert len(messages) <= sum(steps)
    assert max(messages) > SESSIONS // 4
