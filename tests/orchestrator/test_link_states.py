"""Hidden states in a link that lags: they are dropped before anything else grows."""

import asyncio
from itertools import chain
from typing import Any

from orchestrator.workers.link import STATE_PORTION, LinkLimits, WorkerLink
from services.contract.frames import StepFrame, StepRow, step_frame, step_rows
from services.contract.states import Fate, state_bytes
from services.contract.types import Role
from services.contract.wire.protocol2 import DRAFTER_LINK_2
from services.contract.worker_messages import SetWindow, TextStates
from tests.waiting import until


class Call:
    """A stream whose peer reads when it is let."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[list[Any]] = []

    async def write(self, message: Any) -> None:
        await self.reads.wait()
        self.written.append(list(DRAFTER_LINK_2.decode_request(message)[1]))


def link(states: int, counted: list[tuple[Fate, int]]) -> WorkerLink:
    """One that is up, without a worker."""

    async def on_up(_: WorkerLink) -> None: ...

    made = WorkerLink(
        "a:1",
        Role.DRAFTER,
        "o",
        protocol=2,
        on_up=on_up,
        on_event=lambda *_: None,
        on_down=lambda *_: None,
        limits=LinkLimits(states=states),
        on_states=lambda fate, size: counted.append((fate, size)),
    )
    made.up = True
    return made


def frame(position: int, states: int = 0, handle: int = 1) -> StepFrame:
    return step_frame(StepFrame(1), [StepRow(handle, 1, position, (4,), states=bytes(states))])


def told(message: StepFrame) -> tuple[list[int], int]:
    """Where its steps begin, and how many bytes of states it has."""
    return [row.position for row in step_rows(message)], state_bytes(message)


async def test_what_finds_no_room_leaves_without_and_commits_are_all_there() -> None:
    counted: list[tuple[Fate, int]] = []
    lagging, call = link(10, counted), Call()
    for number in range(3):
        lagging.send(frame(number, 6))
    lagging.send(TextStates(1, 1, 0, bytes(6)))
    writer = asyncio.create_task(lagging._write(call))
    await asyncio.sleep(0)
    call.reads.set()
    await until(lambda: call.written)
    sent = [told(one) for message in call.written for one in message]
    assert sent == [([0], 6), ([1], 0), ([2], 0)]
    assert counted == [(Fate.DROPPED, 6)] * 3 + [(Fate.SENT, 6)]
    before = len(call.written)
    lagging.send(frame(3, 10))
    await until(lambda: len(call.written) > before)
    assert [told(one) for one in call.written[-1]] == [([3], 10)]
    writer.cancel()


async def test_a_session_without_states_waits_for_no_more_than_a_portion() -> None:
    lagging, call = link(1 << 30, []), Call()
    for number in range(3):
        lagging.send(frame(number, STATE_PORTION, handle=1))
    lagging.send(frame(0, handle=2))
    lagging.send(SetWindow(1, 3))
    writer = asyncio.create_task(lagging._write(call))
    call.reads.set()

    def frames(handle: int) -> list[StepFrame]:
        every = [one for one in chain(*call.written) if isinstance(one, StepFrame)]
        return [one for one in every if handle in one.every_handle()]

    await until(lambda: len(frames(1)) == 3)
    assert call.written[0] == frames(2)
    assert [told(one)[0] for one in frames(1)] == [[0], [1], [2]]
    writer.cancel()
