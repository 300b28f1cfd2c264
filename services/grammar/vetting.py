"""Untrusted response formats are compiled first in child processes, where that does no harm.

What compiling one takes cannot be told from its size: a schema of 500 bytes may take minutes
and gigabytes, in native code that nothing interrupts. So each is compiled in a process of its
own (`services.grammar.vetting_child`), whose CPU time and memory the kernel bounds.
That process yields CPU and memory to this one, and dies with it.

    submit → the queue (bounded, in turns by owner) → a thread and its child → the future

Formats of one owner never take every child, as long as there are several.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, deque
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from services.contract.errors import Draining, Overloaded
from services.contract.types import ResponseFormat

logger = logging.getLogger(__name__)

MOST_WAITING, MOST_OF_ONE = 256, 64
RETRY_SECONDS = 1.0
_END_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on compiling one format: `seconds` of CPU time, `memory` in bytes.

    `patience`: seconds of wall-clock time, for a machine that gives it no CPU.
    """

    seconds: float = 2.0
    memory: int = 512 << 20
    patience: float = 15.0


class Vetted(NamedTuple):
    """`complaint`: why the format cannot be used, empty if it can; `size`: bytes, roughly.

    `seconds`: the CPU time of the check; `grammar`: the format as llguidance reads it.
    """

    complaint: str
    size: int = 0
    seconds: float = 0.0
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class _Job:
    wanted: ResponseFormat
    special: tuple[str, ...]
    owner: str
    answer: Future[Vetted]


class _Line:
    """Waiting jobs by owner; owners take turns. Callers hold the lock."""

    def __init__(self, at_once: int) -> None:
        """`at_once`: most jobs of one owner under way."""
        self._at_once = at_once
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._working: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, job: _Job) -> None:
        """Append to its owner's queue. Raises Overloaded."""
        if len(self._waiting.get(job.owner, ())) >= MOST_OF_ONE or len(self) >= MOST_WAITING:
            raise Overloaded("too many response formats wait to be compiled", RETRY_SECONDS)
        self._waiting.setdefault(job.owner, deque()).append(job)

    def take(self) -> _Job | None:
        """The next job of the owner whose turn it is."""
        for owner, jobs in self._waiting.items():
            if self._working[owner] < self._at_once:
                job = jobs.popleft()
                self._waiting.move_to_end(owner)
                if not jobs:
                    del self._waiting[owner]
                self._working[owner] += 1
                return job
        return None

    def done(self, job: _Job) -> None:
        """The job is no longer under way."""
        self._working[job.owner] -= 1
        self._working += Counter()  # Drops the zeros.

    def clear(self) -> list[_Job]:
        """Remove and return all waiting jobs."""
        jobs = [job for own in self._waiting.values() for job in own]
        self._waiting.clear()
        return jobs


class Vetting:
    """`processes` children, each started when first needed. Safe in any thread."""

    def __init__(self, bounds: Bounds | None = None, processes: int = 3) -> None:
        self._bounds = bounds or Bounds()
        self._line = _Line(max(1, processes - 1))
        self._changed = threading.Condition()
        self._most, self._idle = processes, 0
        self._children: list[_Child] = []
        self._closed = False

    def submit(
        self, wanted: ResponseFormat, owner: str = "", special: tuple[str, ...] = ()
    ) -> Future[Vetted]:
        """Vet a format, unless it is cancelled before its turn. `owner`: whose turn it takes.

        `special`: the special tokens that it may mean.

        Raises Overloaded when too many wait. The future raises Overloaded if the machine was
        too busy, and Draining after `close`. Its callbacks run in a child's thread, which
        waits for them.
        """
        job = _Job(wanted, special, owner, Future())
        with self._changed:
            if self._closed:
                raise _closing()
            self._line.put(job)
            if len(self._line) > self._idle and len(self._children) < self._most:
                self._begin()
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Kill the children; waiting jobs raise Draining."""
        with self._changed:
            self._closed = True
            waiting, children = self._line.clear(), list(self._children)
            self._changed.notify_all()
        for child in children:
            child.end()
        for job in waiting:
            if job.answer.set_running_or_notify_cancel():
                job.answer.set_exception(_closing())

    @property
    def pids(self) -> list[int]:
        """The ids of the running children."""
        return [child.pid for child in list(self._children) if child.pid]

    def _begin(self) -> None:
        child = _Child(self._bounds)
        self._children.append(child)
        name = f"vetting-{len(self._children)}"
        threading.Thread(target=self._serve, args=(child,), name=name, daemon=True).start()

    def _serve(self, child: _Child) -> None:
        while (job := self._next()) is not None:
            if job.answer.set_running_or_notify_cancel():
                try:
                    vetted = child.vet(job)
                except Exception as error:
                    job.answer.set_exception(error)
                else:
                    job.answer.set_result(vetted)
            with self._changed:
                self._line.done(job)
                self._changed.notify_all()
        child.end()

    def _next(self) -> _Job | None:
        with self._changed:
            self._idle += 1
            try:
                while not self._closed:
                    if (job := self._line.take()) is not None:
                        return job
                    self._changed.wait()
            finally:
                self._idle -= 1
        return None


class Limits(Protocol):
    """What a worker's settings say of compiling one format."""

    @property
    def form_seconds(self) -> float:
        """Of CPU."""

    @property
    def form_memory_mb(self) -> int:
        """In MiB."""


def vetting_of(limits: Limits) -> Vetting:
    """A worker's, in one process."""
    return Vetting(Bounds(limits.form_seconds, limits.form_memory_mb << 20), processes=1)


class _Child:
    """One child process, restarted after its death. `vet` belongs to one thread."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int:
        """The process's id; 0 = there is none."""
        process = self._process
        return process.pid if process is not None else 0

    def end(self) -> None:
        """Kill it and start no other; in any thread."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()
                self._process.wait(_END_SECONDS)

    def vet(self, job: _Job) -> Vetted:
        """Vet one format. Raises Overloaded without a result, Draining after `end`."""
        link = self._started()
        try:
            asked = [job.wanted.kind, job.wanted.source, job.special]
            link.send_bytes(json.dumps(asked).encode())
            if not link.poll(self._bounds.patience):
                self._lose(kill=True)
                raise _unknown(f"took more than {self._bounds.patience:g} s on a busy machine")
            complaint, size, seconds, compiled, goes_on = json.loads(link.recv_bytes())
        except (EOFError, OSError):
            return Vetted(self._cause(self._lose()), seconds=self._bounds.seconds)
        if not goes_on:
            self._lose()
        return Vetted(complaint, size, seconds, compiled)

    def _started(self) -> Connection[Any, Any]:
        with self._lock:
            if self._ended:
                raise _closing()
            if self._link is None:
                try:
                    self._begin()
                except OSError as error:
                    logger.warning("no process to vet response formats: %s", error)
                    raise _unknown("found no process for it") from None
            assert self._link is not None
            return self._link

    def _begin(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    _command(theirs.fileno(), self._bounds),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # What it says there may quote the format.
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C reaches this process alone
                )
            except OSError:
                ours.close()
                raise
        self._link = ours

    def _lose(self, *, kill: bool = False) -> int:
        """Let go of the process; its exit status."""
        process, link = self._process, self._link
        assert process is not None
        assert link is not None
        link.close()
        if kill:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        with self._lock:
            self._process = self._link = None
        return process.returncode if process.returncode is not None else -signal.SIGKILL

    def _cause(self, status: int) -> str:
        """The complaint about a format whose process died; raises if it is not to blame."""
        match -status:
            case signal.SIGPROF:
                return f"it takes more than {self._bounds.seconds:g} s of CPU time to compile"
            case signal.SIGABRT:
                return f"it takes more than {self._bounds.memory >> 20} MiB of memory to compile"
            case signal.SIGSEGV | signal.SIGBUS | signal.SIGILL:
                return "it is nested too deep to compile"
        if self._ended:
            raise _closing()
        logger.warning("a process that vets response formats ended with status %d", status)
        raise _unknown("was ended from outside")


def _command(handle: int, bounds: Bounds) -> list[str]:
    given = (handle, os.getpid(), bounds.seconds, bounds.memory)
    # -P: a folder named like one of our packages must not be imported from here.
    return [sys.executable, "-P", "-m", "services.grammar.vetting_child", *map(str, given)]


def _closing() -> Draining:
    return Draining("this process stops; ask another one")


def _unknown(what: str) -> Overloaded:
    return Overloaded(f"compiling the response format {what}", RETRY_SECONDS)
