"""The host: one thread for the core, order kept, bounds kept, a crash is final."""

import asyncio
import logging
import threading
import time
from dataclasses import replace

import pytest

from services.contract import types as t
from services.contract.errors import NoWorker
from services.contract.frames import step_rows
from services.contract.worker_messages import SessionStarted
from services.runtime.host import WorkerHost
from tests.services.fakes import FakeCore, Sink, draft, start
from tests.waiting import until


@pytest.fixture
async def host():
    host = WorkerHost(FakeCore, queue_limit=8)
    host.start()
    yield host
    host._core.gate.set()
    await host.stop()


@pytest.fixture
async def core(host):
    return host._core


@pytest.fixture
async def sink():
    return Sink()


@pytest.fixture
async def link(host, sink):
    """What comes of it goes to the sink."""
    return host.open_link(sink)


def numbers(frame):
    """Of the drafts that a step judged."""
    return [row.name.number for row in step_rows(frame)]


def watched(core, name, seen):
    """Have `seen` called with the arguments of each call of a core's method."""
    own = getattr(core, name)
    setattr(core, name, lambda *given: (seen(*given), own(*given))[1])


async def test_commands_come_back_as_events_in_order(host, sink, link):
    drafts = [draft(number=n) for n in range(1, 21)]
    await host.submit(link, [start(), *drafts])
    await sink.until(21)
    assert sink.events[0] == SessionStarted(1, 1)
    assert [numbers(event) for event in sink.events[1:]] == [[n] for n in range(1, 21)]


async def test_the_core_runs_in_one_thread_that_is_not_the_loop(host, core, sink, link):
    seen = set()
    for name in ("handle", "step"):
        watched(core, name, lambda *_: seen.add(threading.get_ident()))
    await host.submit(link, [start(), draft()])
    await sink.until(2)
    assert len(seen) == 1
    assert threading.get_ident() not in seen


async def test_events_of_one_step_arrive_as_one_batch(host, core, sink, link):
    core.gate.clear()
    await host.submit(link, [start(), draft(number=1), draft(number=2), draft(number=3)])
    await sink.until(1)
    core.gate.set()
    await sink.until(4)
    assert [len(batch) for batch in sink.batches] == [1, 3]


async def test_events_go_to_their_own_link_only(host, sink, link):
    theirs = Sink()
    await host.submit(link, [start(1)])
    await host.submit(host.open_link(theirs), [start(2)])
    await sink.until(1)
    await theirs.until(1)
    assert (sink.events, theirs.events) == ([SessionStarted(1, 1)], [SessionStarted(2, 1)])


async def test_closing_a_link_frees_its_sessions_and_only_those(host, core, link):
    theirs = Sink()
    second = host.open_link(theirs)
    await host.submit(link, [start()])
    await host.submit(second, [start()])
    await theirs.until(1)
    host.close_link(link)
    await until(lambda: core.sessions == {(second, 1)})
    await host.submit(link, [start(3)])
    await host.submit(second, [draft()])
    await theirs.until(2)
    assert core.sessions == {(second, 1)}


async def test_submit_waits_while_the_queue_is_full(host, core, sink, link):
    core.gate.clear()
    await host.submit(link, [start()])
    await until(lambda: core.handled)
    many = asyncio.create_task(host.submit(link, [draft(number=n) for n in range(1, 101)]))
    await asyncio.sleep(0.05)
    assert not many.done()
    assert len(host._inbox._items) == 8
    core.gate.set()
    await sink.until(101)
    await many
    assert [numbers(event) for event in sink.events[1:]] == [[n] for n in range(1, 101)]


async def test_who_hears_that_a_session_began_finds_it_in_the_progress(host, sink, link):
    told, post = [], host._post
    host._post = lambda *given: (told.append(host.progress().sessions), post(*given))
    await host.submit(link, [start()])
    await sink.until(1)
    assert told == [1]


async def test_progress_grows_with_steps_and_shows_queued_work_in_a_step(host, core, sink, link):
    assert host.progress() == t.Progress(links=1)
    core.gate.clear()
    await host.submit(link, [start(), draft(number=1)])
    await sink.until(1)
    told = replace(host.progress(), turn_ms=0.0)
    assert told == t.Progress(steps=0, sessions=1, queued_tokens=1, links=1)
    core.gate.set()
    await sink.until(2)
    # The sink has a step's events before its turn is over and counted.
    after = t.Progress(steps=1, sessions=1, links=1)
    await until(lambda: replace(host.progress(), turn_ms=0.0) == after)


def aged(host):
    """How old the oldest command is while the loop runs, in ms."""
    host.beat()
    return host.progress().oldest_command_ms


async def test_a_command_that_is_not_taken_grows_old_and_so_does_the_turn(host, core, sink, link):
    core.gate.clear()
    await host.submit(link, [start()])
    await sink.until(1)
    assert host.progress().oldest_command_ms == 0.0
    await host.submit(link, [draft()])
    await until(lambda: aged(host) >= 170)
    told = host.progress()
    assert told.turn_ms >= told.oldest_command_ms
    assert told.stuck_ms == told.turn_ms
    core.gate.set()
    await sink.until(2)
    await until(lambda: host.progress().stuck_ms == 0.0)


async def test_a_command_that_the_core_is_stuck_in_grows_old_too(host, core, link):
    entered = threading.Event()
    watched(core, "handle", lambda *_: (entered.set(), core.gate.wait()))
    core.gate.clear()
    await host.submit(link, [start()])
    await until(entered.is_set)
    await until(lambda: aged(host) >= 110)
    core.gate.set()
    await until(lambda: host.progress().oldest_command_ms == 0.0)


async def test_ages_leave_out_what_the_process_stood_still(host, core, sink, link):
    core.gate.clear()
    await host.submit(link, [start()])
    await sink.until(1)
    await host.submit(link, [draft()])
    time.sleep(1.2)  # noqa: ASYNC251 - the loop is to stand still.
    assert host.progress().oldest_command_ms < 500
    host.beat()
    assert host.progress().oldest_command_ms < 500


async def test_an_idle_core_is_not_stepped(host, core, sink, link):
    calls = []
    watched(core, "step", lambda: calls.append(1))
    await host.submit(link, [start()])
    await sink.until(1)
    await asyncio.sleep(0.05)
    assert len(calls) == 1


async def test_a_crash_closes_the_links_and_is_final(host, sink, link, caplog):
    theirs, late = Sink(), Sink()
    host.open_link(theirs)
    with caplog.at_level(logging.ERROR):
        await host.submit(link, [start(), draft(666)])
        error = await host.failure()
    assert str(error) == "the core is broken"
    assert "the worker's core failed" in caplog.text
    host.open_link(late)
    assert [type(own.closed[0]) for own in (sink, theirs, late)] == [NoWorker] * 3
    await host.submit(link, [draft()] * 100)


async def test_a_crash_wakes_who_waits_for_room(host, core, link):
    core.gate.clear()
    await host.submit(link, [start(), draft(666)])
    await until(lambda: len(core.handled) == 2)
    many = asyncio.create_task(host.submit(link, [draft()] * 100))
    await asyncio.sleep(0.02)
    core.gate.set()
    async with asyncio.timeout(60):
        await many


class PatientCore(FakeCore):
    """Waits, while fewer than `wanted` drafts wait; `asked` counts how often it was asked."""

    def __init__(self, emit, wanted=2, seconds=3600.0):
        super().__init__(emit)
        self.wanted, self.seconds = wanted, seconds
        self.asked = 0
        self.batches = []

    def patience(self):
        self.asked += 1
        return self.seconds if 0 < len(self.waiting) < self.wanted else 0.0

    def step(self):
        self.batches += [len(self.waiting)] if self.waiting else []
        return super().step()


@pytest.fixture
async def patient():
    host = WorkerHost(PatientCore)
    host.start()
    yield host
    await host.stop()


async def waiting(patient, sink=None):
    """A core that waits with a draft of session 1, and the link of that."""
    link = patient.open_link(sink or Sink())
    await patient.submit(link, [start(1), start(2), draft(handle=1)])
    await until(lambda: patient._core.waiting)
    return patient._core, link


async def test_commands_that_come_while_the_core_waits_are_in_its_next_step(patient, sink):
    core, link = await waiting(patient, sink)
    asked = core.asked
    await asyncio.sleep(0.05)
    assert core.asked - asked <= 1, "a waiting core is left alone"
    assert core.batches == []
    await patient.submit(link, [draft(handle=2)])
    await sink.until(4)
    assert core.batches == [2]


async def test_progress_and_events_do_not_wait_for_the_step_that_waits(patient, sink):
    _, link = await waiting(patient, sink)
    await sink.until(2)
    await until(lambda: patient.progress() == t.Progress(0, 2, 1, links=1))
    await patient.submit(link, [start(3)])
    await sink.until(3)


async def test_a_core_is_asked_again_when_its_patience_is_over(patient, sink):
    patient._core.seconds = 0.01
    core, _ = await waiting(patient, sink)
    await until(lambda: core.asked > 5)
    assert core.batches == []
    core.wanted = 1
    await sink.until(3)


async def test_a_link_that_ends_while_the_core_waits_frees_its_sessions(patient):
    core, link = await waiting(patient)
    patient.close_link(link)
    await until(lambda: not core.sessions)


async def test_stop_does_not_wait_for_a_core_that_waits(patient):
    await waiting(patient)
    async with asyncio.timeout(60):
        await patient.stop(timeout=3600)
    assert not patient._thread.alive


async def test_a_command_arrives_when_it_is_submitted_not_when_a_step_lets_it_in(host, core, link):
    arrivals = []
    watched(core, "handle", lambda *given: arrivals.append(given[2]))
    core.gate.clear()
    await host.submit(link, [start()])
    await until(lambda: arrivals)
    await host.submit(link, [draft()])
    submitted = time.perf_counter()
    await asyncio.sleep(0.01)
    core.gate.set()
    await until(lambda: len(arrivals) == 2)
    assert arrivals[0] < arrivals[1] <= submitted


async def test_stop_ends_the_thread_and_the_links(sink):
    host = WorkerHost(FakeCore)
    host.start()
    host.open_link(sink)
    await host.stop()
    assert sink.closed == [None]
    assert not host._thread.alive


async def test_a_core_hears_in_the_middle_of_a_step_what_came_since_that_began():
    class Hearing(FakeCore):
        """Absorbs what has come while a step runs, and tells what it was."""

        def __init__(self, emit):
            super().__init__(emit)
            self.heard = []

        def step(self):
            if not self.waiting:
                return False
            self.gate.wait()
            before = len(self.handled)
            self.emit.absorb()
            self.heard.append([command for _, command in self.handled[before:]])
            return super().step()

    host = WorkerHost(Hearing, queue_limit=2)
    host.start()
    core, sink = host._core, Sink()
    link = host.open_link(sink)
    await host.submit(link, [start()])
    await sink.until(1)
    core.gate.clear()
    await host.submit(link, [draft(1)])
    await until(lambda: core.waiting)
    late = [draft(2, number=2), draft(3, number=3), draft(4, number=4)]
    sending = asyncio.create_task(host.submit(link, late))
    await asyncio.sleep(0.05)
    core.gate.set()
    await sink.until(5)
    await sending
    assert core.heard[0] == late[:2]
    await host.stop()


async def test_a_core_that_rests_has_another_turn_when_it_wants_one():
    class Looking(FakeCore):
        """Has nothing to do, and wants to look again soon."""

        turns, again = 0, 0.0

        def patience(self):
            return max(0.0, self.again - time.perf_counter())

        def step(self):
            self.turns += 1
            self.again = time.perf_counter() + 0.02
            return False

    host = WorkerHost(Looking)
    host.start()
    host.wake()
    await until(lambda: host._core.turns >= 3)
    await host.stop()
