"""Tasks that are told to end."""

import asyncio

import pytest

from services.runtime import tasks
from services.runtime.tasks import end


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(tasks, "AGAIN_SECONDS", 0.01)


async def test_a_task_that_waits_has_ended():
    task = asyncio.create_task(asyncio.sleep(60))
    await end(task)
    assert task.cancelled()


async def test_one_that_has_ended_stays_as_it_is():
    async def fail():
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await end(task)
    assert isinstance(task.exception(), ValueError)


async def test_a_cancellation_that_is_lost_is_repeated():
    lost = []

    async def loop():
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                # As `asyncio.wait_for` of Python 3.11 does with the result in its hands.
                if len(lost) == 2:
                    raise
                lost.append(1)

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    await end(task)
    assert (task.cancelled(), len(lost)) == (True, 2)
