"""Hidden states in a link that lags: they are dropped before anything else grows."""

import asyncio
from typing import Any

from orchestrator.workers.link import STATE_PORTION, LinkLimits, WorkerLink
from services.contract.states import Fate
from services.contract.types import CommitDraft, Credit, DraftStates, Role
from services.contract.wire import DRAFTER_LINK
from tests.waiting import until


class Call:
    """A stream whose peer reads when it is let."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[list[Any]] = []

    async def write(self, message: Any) -> None:
        await self.reads.wait()
        self.written.append(DRAFTER_LINK.decode_request(message)[1])


def link(states: int, counted: list[tuple[Fate, int]]) -> WorkerLink:
    """One that is up, without a worker."""

    async def on_up(_: WorkerLink) -> None: ...

    made = WorkerLink(
        "a:1",
        Role.DRAFTER,
        "o",
        on_up=on_up,
        on_event=lambda *_: None,
        on_down=lambda *_: None,
        limits=LinkLimits(states=states),
        on_states=lambda fate, size: counted.append((fate, size)),
    )
    made.up = True
    return made


def commit(session: str, base_len: int, states: bytes = b"") -> CommitDraft:
    return CommitDraft(session, 1, base_len, (4,), b"", states)


async def test_what_finds_no_room_leaves_without_and_commits_are_all_there() -> None:
    counted: list[tuple[Fate, int]] = []
    lagging, call = link(10, counted), Call()
    for number in range(3):
        lagging.send(commit("s", number, b"\0" * 6))
    lagging.send(DraftStates("s", 1, 0, b"\0" * 6))
    writer = asyncio.create_task(lagging._write(call))
    await asyncio.sleep(0)
    call.reads.set()
    await until(lambda: call.written)
    [sent] = call.written
    assert [(one.base_len, len(one.states)) for one in sent] == [(0, 6), (1, 0), (2, 0)]
    assert counted == [(Fate.DROPPED, 6)] * 3 + [(Fate.SENT, 6)]
    lagging.send(commit("s", 3, b"\0" * 10))
    await until(lambda: len(call.written) == 2)
    assert [len(one.states) for one in call.written[-1]] == [10]
    writer.cancel()


async def test_a_session_without_states_waits_for_no_more_than_a_portion() -> None:
    lagging, call = link(1 << 30, []), Call()
    for number in range(3):
        lagging.send(commit("a", number, bytes(STATE_PORTION)))
    lagging.send(commit("b", 0))
    lagging.send(Credit("a", 3))
    writer = asyncio.create_task(lagging._write(call))
    call.reads.set()

    def of_a() -> list[Any]:
        return [one for message in call.written for one in message if one.session == "a"]

    await until(lambda: len(of_a()) == 4)
    assert [one.session for one in call.written[0]] == ["b"]
    order = of_a()
    assert [type(one) for one in order] == [CommitDraft] * 3 + [Credit]
    assert [one.base_len for one in order[:3]] == [0, 1, 2]
    writer.cancel()
