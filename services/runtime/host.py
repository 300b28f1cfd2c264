"""Runs a worker's core in a thread of its own and bridges it to the event loop.

    loop     submit, open_link, close_link ──▶ inbox (bounded) ──▶ thread
    thread   absorb commands → wait for more, if the core wants to → step, in which the
             core may absorb what came meanwhile → hand the events back, once per step
    loop     every link's sink gets its events; who waits for room is woken

The core is plain synchronous code that only this thread enters, so it needs no
lock; the event loop never waits for it. An exception out of the core ends the
host: a core that broke its own rules must not serve on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from services.contract.errors import NoWorker
from services.contract.states import OnStates
from services.contract.types import Progress, WorkerDescription
from services.runtime.awake import AwakeClock
from services.runtime.core_thread import CoreThread
from services.runtime.state_room import StateRoom

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.25
SNAPSHOT_SECONDS = 0.005
"""Between two snapshots of a core's progress while it works."""
MOST_STATE_BYTES = 64 << 20
"""States of the target in commands that wait; beyond them commands go without."""

C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)

Emit = Callable[[int, Any], None]
"""Called by a core for each event: (link, event)."""


class Outlet:
    """What a host gives its core: to be called with each event, and to hear more within a step."""

    def __init__(self, emit: Emit, absorb: Callable[[], None]) -> None:
        self._emit = emit
        self.absorb = absorb
        """Hands the core, by `handle`, the commands that have arrived since its turn began."""

    def __call__(self, link: int, event: Any) -> None:
        """An event for a link."""
        self._emit(link, event)


class WorkerCore(Protocol[C_contra]):
    """A worker's logic, without the host's threads, locks and clocks.

    `handle` is cheap (no forward) and turns a bad command into `SessionFailed`.
    `step` decides, computes and absorbs; False = there was nothing to do.
    """

    def handle(self, link: int, command: C_contra, arrived: float, /) -> None:
        """Absorb one command; `arrived` is a time of `time.perf_counter`."""

    def patience(self) -> float:
        """Seconds to wait for more commands before the next step; 0 = none.

        Asked again after every command that comes meanwhile. Behind a step that had nothing to
        do: after how long the core wants another turn if nothing comes; 0 = never.
        """

    def step(self) -> bool:
        """One step of work for as many sessions as it can take."""

    def drop_link(self, link: int, /) -> None:
        """Free the sessions of this link, and only those."""

    def progress(self) -> Progress:
        """How busy the core is; `steps` is counted by the host."""

    def describe(self) -> WorkerDescription:
        """What the worker is."""


class Sink(Protocol[E_contra]):
    """Where the events of one link go. Called on the event loop."""

    def put(self, events: Sequence[E_contra], /) -> None:
        """Take events; never blocks."""

    def close(self, error: Exception | None = None, /) -> None:
        """End the link, with the error that ended it."""


class _Drop:
    """In the inbox: the link is gone."""


_DROP = _Drop()


class _Item(NamedTuple, Generic[C]):
    link: int
    command: C | _Drop
    arrived: float
    awake: float


class _Inbox(Generic[C]):
    """Commands on their way into the thread, at most `limit` of them.

    Each with when it arrived, in seconds of `perf_counter` and of the process awake.
    """

    def __init__(
        self, limit: int, changed: threading.Condition, awake: AwakeClock, states: StateRoom
    ) -> None:
        """`states`: the room for the target's states in them."""
        self._limit = limit
        self._states = states
        self._items: deque[_Item[C]] = deque()
        self._refused = False
        self._changed = changed
        self._awake = awake

    @property
    def filled(self) -> bool:
        """Whether something waits; the condition is held."""
        return bool(self._items)

    @property
    def oldest(self) -> float | None:
        """When the first of them arrived, awake; None = nothing waits."""
        with contextlib.suppress(IndexError):
            return self._items[0].awake
        return None

    def offer(self, link: int, commands: Sequence[C]) -> int:
        """Append as many commands as there is room for; how many that were."""
        now = time.perf_counter()
        awake = self._awake.at(now)
        with self._changed:
            room = max(0, self._limit - len(self._items))
            admitted = map(self._states.admit, commands[:room])
            self._items.extend(_Item(link, own, now, awake) for own in admitted if own is not None)
            self._refused = self._refused or room < len(commands)
            self._changed.notify_all()
            return min(room, len(commands))

    def drop(self, link: int) -> None:
        """Append the end of a link, for which there is always room."""
        now = time.perf_counter()
        with self._changed:
            self._items.append(_Item(link, _DROP, now, self._awake.at(now)))
            self._changed.notify_all()

    def take(self) -> tuple[list[_Item[C]], bool]:
        """Everything there is, and whether somebody waits for the room."""
        with self._changed:
            taken, refused = list(self._items), self._refused
            self._items.clear()
            self._refused, self._states.held = False, 0
            return taken, refused


class WorkerHost(Generic[C, E]):
    """One core in one thread. All methods but those of the thread belong to the event loop."""

    def __init__(
        self,
        make_core: Callable[[Outlet], WorkerCore[C]],
        *,
        queue_limit: int = 4096,
        on_states: OnStates | None = None,
    ) -> None:
        """`queue_limit` bounds the commands that wait while a step runs.

        `on_states` is told of the target's states that are dropped on the way.
        """
        self.on_states = on_states
        self._thread = CoreThread(self)
        self._events: list[tuple[int, E]] = []
        self._core = make_core(
            Outlet(lambda link, event: self._events.append((link, event)), self._hear)
        )
        self._awake = AwakeClock(BEAT_SECONDS, time.perf_counter())
        self._inbox: _Inbox[C] = _Inbox(
            queue_limit, self._thread.changed, self._awake, StateRoom(MOST_STATE_BYTES, on_states)
        )
        self._sinks: dict[int, Sink[E]] = {}
        self._last_link = 0
        self._busy = self._woken = self._made_room = False
        self._patience = 0.0
        self._steps = 0
        # When the turn that runs began, and when the command in hand arrived, awake.
        self._turn_began: float | None = None
        self._in_hand: float | None = None
        self._progress = self._core.progress()
        self._snapshot_due = 0.0

    def start(self) -> None:
        """Take turns in the thread; needs the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._failure: asyncio.Future[Exception] = self._loop.create_future()
        self._thread.start()

    async def stop(self, timeout: float = 5.0) -> None:
        """Stop after the step that runs. Links still open are closed."""
        await self._loop.run_in_executor(None, self._thread.stop, timeout)
        self._close_sinks(None)

    def describe(self) -> WorkerDescription:
        """What the worker is."""
        return self._core.describe()

    def progress(self) -> Progress:
        """The newest snapshot of the core; `steps` grows while it works.

        The ages of the running turn and of the oldest command are current, since a stuck
        core makes no snapshot.
        """
        now = self._awake.at(time.perf_counter())
        waiting = [since for since in (self._in_hand, self._inbox.oldest) if since is not None]
        return replace(
            self._progress,
            oldest_command_ms=_ms_since(min(waiting, default=None), now),
            turn_ms=_ms_since(self._turn_began, now),
            links=len(self._sinks),
        )

    def beat(self) -> None:
        """The loop runs; call it every `BEAT_SECONDS`, or ages include stalls."""
        self._awake.beat(time.perf_counter())

    async def failure(self) -> Exception:
        """Wait for the core to fail; the exception it failed with."""
        return await asyncio.shield(self._failure)

    def open_link(self, sink: Sink[E]) -> int:
        """A number for a new link, whose events go to `sink`."""
        self._last_link += 1
        if self._failure.done():
            sink.close(_failed())
        else:
            self._sinks[self._last_link] = sink
        return self._last_link

    def close_link(self, link: int) -> None:
        """Forget the link and free its sessions. Idempotent."""
        if self._sinks.pop(link, None) is not None:
            self._inbox.drop(link)

    async def submit(self, link: int, commands: Sequence[C]) -> None:
        """Hand commands to the core; wait while its inbox is full.

        Commands of a closed link are dropped.
        """
        while commands and link in self._sinks:
            self._room.clear()
            admitted = self._inbox.offer(link, commands)
            commands = commands[admitted:]
            if commands:
                await self._room.wait()

    def wake(self) -> None:
        """Give the core a turn without a command. Safe in any thread."""
        with self._thread.changed:
            self._woken = True
            self._thread.changed.notify_all()

    # --- in the thread ---------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether it has something to do; the thread's condition is held."""
        return self._busy or self._woken or self._inbox.filled

    @property
    def patience(self) -> float:
        """Seconds until its next turn if nothing comes; 0 = none then."""
        return self._patience

    def turn(self) -> None:
        """Absorb commands; then take one step, unless the core wants to wait for more."""
        self._woken = False  # Before the core looks: what comes later wakes it again.
        self._turn_began = self._awake.at(time.perf_counter())
        self._hear()
        self._report()
        self._patience = self._core.patience()
        self._busy = False
        if self._patience <= 0:
            self._busy = self._core.step()
            self._steps += self._busy
            if not self._busy:
                self._patience = self._core.patience()
            self._report()
        self._turn_began = None

    def fail(self, error: Exception) -> None:
        """End the host with the error of its core."""
        self._post(self._fail, error)

    def _hear(self) -> None:
        """Hand in what has come; the core asks for it in the middle of a step, too."""
        items, refused = self._inbox.take()
        self._made_room = self._made_room or refused
        for item in items:
            self._in_hand = item.awake
            if isinstance(item.command, _Drop):
                self._core.drop_link(item.link)
            else:
                self._core.handle(item.link, item.command, item.arrived)
        self._in_hand = None

    def _report(self) -> None:
        """Publish the progress, and behind it post the events, in one call to the loop.

        A drain that begins as soon as a first session was told to have begun waits for it.
        """
        now = time.perf_counter()
        if not self._busy or now >= self._snapshot_due:
            self._snapshot_due = now + SNAPSHOT_SECONDS
            self._progress = replace(self._core.progress(), steps=self._steps)
        if self._events or self._made_room:
            batch = self._events.copy()
            self._events.clear()
            self._made_room = False
            self._post(self._deliver, batch)

    def _post(self, callback: Callable[[Any], None], argument: object) -> None:
        # The loop may be closed while the last step runs; then nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, argument)

    # --- posted to the loop ----------------------------------------------------

    def _deliver(self, batch: list[tuple[int, E]]) -> None:
        self._room.set()
        by_link: dict[int, list[E]] = {}
        for link, event in batch:
            by_link.setdefault(link, []).append(event)
        for link, events in by_link.items():
            if sink := self._sinks.get(link):
                sink.put(events)

    def _fail(self, error: Exception) -> None:
        self._failure.set_result(error)
        self._close_sinks(_failed())

    def _close_sinks(self, error: Exception | None) -> None:
        for sink in self._sinks.values():
            sink.close(error)
        self._sinks.clear()
        self._room.set()


def _ms_since(then: float | None, now: float) -> float:
    return 0.0 if then is None else 1e3 * max(0.0, now - then)


def _failed() -> NoWorker:
    return NoWorker("this worker's engine has failed")
