"""The host: one thread for the core, order kept, bounds kept, a crash is final."""

import asyncio
import logging
import threading

import pytest

from services.common import types as t
from services.common.errors import NoWorker
from services.common.host import WorkerHost
from tests.services.fakes import FakeCore, block, open_verify


class Sink:
    """Collects what a link would send, and how it was delivered."""

    def __init__(self):
        self.batches = []
        self.closed = []
        self.changed = asyncio.Event()

    def put(self, events):
        self.batches.append(list(events))
        self.changed.set()

    def close(self, error=None):
        self.closed.append(error)
        self.changed.set()

    @property
    def events(self):
        return [event for batch in self.batches for event in batch]

    async def until(self, count):
        async with asyncio.timeout(10):
            while len(self.events) < count:
                self.changed.clear()
                await self.changed.wait()


async def eventually(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
async def cores():
    return []


@pytest.fixture
async def host(cores):
    def make(emit):
        cores.append(FakeCore(emit))
        return cores[0]

    host = WorkerHost(make, queue_limit=8)
    host.start()
    yield host
    cores[0].gate.set()
    await host.stop()


async def test_commands_come_back_as_events_in_order(host):
    sink = Sink()
    link = host.open_link(sink)
    blocks = [block(round=n) for n in range(1, 21)]
    await host.submit(link, [open_verify(), *blocks])
    await sink.until(21)
    assert sink.events[0] == t.VerifyOpened("s", 1)
    assert [event.round for event in sink.events[1:]] == list(range(1, 21))


async def test_the_core_runs_in_one_thread_that_is_not_the_loop(host, cores):
    seen = set()
    core = cores[0]
    handle, step = core.handle, core.step
    core.handle = lambda *a: (seen.add(threading.get_ident()), handle(*a))[1]
    core.step = lambda: (seen.add(threading.get_ident()), step())[1]
    sink = Sink()
    await host.submit(host.open_link(sink), [open_verify(), block()])
    await sink.until(2)
    assert len(seen) == 1
    assert threading.get_ident() not in seen


async def test_events_of_one_step_arrive_as_one_batch(host, cores):
    sink = Sink()
    link = host.open_link(sink)
    cores[0].gate.clear()
    await host.submit(link, [open_verify(), block(round=1), block(round=2), block(round=3)])
    await sink.until(1)
    cores[0].gate.set()
    await sink.until(4)
    assert [len(batch) for batch in sink.batches] == [1, 3]


async def test_events_go_to_their_own_link_only(host):
    ours, theirs = Sink(), Sink()
    first, second = host.open_link(ours), host.open_link(theirs)
    await host.submit(first, [open_verify("a")])
    await host.submit(second, [open_verify("b")])
    await ours.until(1)
    await theirs.until(1)
    assert (ours.events, theirs.events) == ([t.VerifyOpened("a", 1)], [t.VerifyOpened("b", 1)])


async def test_closing_a_link_frees_its_sessions_and_only_those(host, cores):
    ours, theirs = Sink(), Sink()
    first, second = host.open_link(ours), host.open_link(theirs)
    await host.submit(first, [open_verify("s")])
    await host.submit(second, [open_verify("s")])
    await theirs.until(1)
    host.close_link(first)
    await eventually(lambda: cores[0].sessions == {(second, "s")})
    await host.submit(first, [open_verify("late")])
    await host.submit(second, [block()])
    await theirs.until(2)
    assert cores[0].sessions == {(second, "s")}


async def test_submit_waits_while_the_queue_is_full(host, cores):
    sink = Sink()
    link = host.open_link(sink)
    cores[0].gate.clear()
    await host.submit(link, [open_verify()])
    await eventually(lambda: cores[0].handled)
    many = asyncio.create_task(host.submit(link, [block(round=n) for n in range(1, 101)]))
    await asyncio.sleep(0.05)
    assert not many.done()
    assert len(host._inbox._items) == 8
    cores[0].gate.set()
    await sink.until(101)
    await many
    assert [event.round for event in sink.events[1:]] == list(range(1, 101))


async def test_progress_grows_with_steps_and_shows_queued_work_inside_a_step(host, cores):
    sink = Sink()
    link = host.open_link(sink)
    assert host.progress() == t.Progress()
    cores[0].gate.clear()
    await host.submit(link, [open_verify(), block(round=1)])
    await sink.until(1)
    assert host.progress() == t.Progress(steps=0, sessions=1, queued_tokens=1)
    cores[0].gate.set()
    await sink.until(2)
    assert host.progress() == t.Progress(steps=1, sessions=1)


async def test_an_idle_core_is_not_stepped(host, cores):
    sink = Sink()
    calls = []
    step = cores[0].step
    cores[0].step = lambda: (calls.append(1), step())[1]
    await host.submit(host.open_link(sink), [open_verify()])
    await sink.until(1)
    await asyncio.sleep(0.05)
    assert len(calls) == 1


async def test_a_crash_closes_the_links_and_is_final(host, cores, caplog):
    ours, theirs = Sink(), Sink()
    link = host.open_link(ours)
    host.open_link(theirs)
    with caplog.at_level(logging.ERROR):
        await host.submit(link, [open_verify(), block(666)])
        error = await host.failure()
    assert str(error) == "the core is broken"
    assert "the worker's core failed" in caplog.text
    assert [type(sink.closed[0]) for sink in (ours, theirs)] == [NoWorker, NoWorker]
    late = Sink()
    host.open_link(late)
    assert isinstance(late.closed[0], NoWorker)
    await host.submit(link, [block()] * 100)


async def test_a_crash_wakes_who_waits_for_room(host, cores):
    link = host.open_link(Sink())
    cores[0].gate.clear()
    await host.submit(link, [open_verify(), block(666)])
    await eventually(lambda: len(cores[0].handled) == 2)
    many = asyncio.create_task(host.submit(link, [block()] * 100))
    await asyncio.sleep(0.02)
    cores[0].gate.set()
    async with asyncio.timeout(10):
        await many


async def test_stop_ends_the_thread_and_the_links(cores):
    host = WorkerHost(FakeCore)
    host.start()
    sink = Sink()
    host.open_link(sink)
    await host.stop()
    assert sink.closed == [None]
    assert not host._thread.is_alive()
