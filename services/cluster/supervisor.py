"""Keeps a set of child processes alive: start, restart with a growing pause, stop.

A child is ready when its ready file holds an address. One that exits before it was
ever ready is a fault of settings, not of luck: its start fails with what it says of itself, else
with its log's last line. One that dies later is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.contract.errors import StartError
from services.engine.stages import STAGE

START_TIMEOUT_S = 300.0
_POLL_S = 0.05
TELL_S = 2.0
"""How often a start that takes long is told of. Tests shorten it."""
_OWN_WORDS = re.compile(r"paceline [a-z]+: ")
"""How a process says why it ends: `services.cluster.flags.complain`."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How to start one child. `ready_file` and `log_file` are written by the child.

    `environment` is added to this process's own, `defaults` where that says nothing.
    """

    name: str
    argv: tuple[str, ...]
    ready_file: Path
    log_file: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before starting a dead child again, in seconds.

    The pause doubles with each death in a row; a life of `steady_after` ends the row.
    """

    first_pause: float = 0.25
    longest_pause: float = 15.0
    steady_after: float = 30.0

    def deaths_in_a_row(self, before: int, lifetime: float) -> int:
        """The length of the row after one more death."""
        return 1 if lifetime >= self.steady_after else before + 1

    def pause(self, deaths: int) -> float:
        """Seconds to wait after `deaths` in a row (at least 1)."""
        return min(self.longest_pause, self.first_pause * 2.0 ** min(deaths - 1, 32))


class Child:
    """One supervised process."""

    def __init__(self, spec: ProcessSpec, report: Callable[[str], None], policy: RestartPolicy):
        self.spec = spec
        self._report = report
        self._policy = policy
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    async def start(self, timeout: float) -> str:
        """Start and wait until ready; the address. Raises StartError."""
        await self._spawn()
        address = await self._until_ready(timeout)
        self._report(f"{self.spec.name} serves on {address}")
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")
        return address

    async def stop(self, grace: float) -> None:
        """Ask it to end, and make it end after `grace` seconds."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        process = self._process
        if process is None or process.returncode is not None:
            return
        _signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            self._report(f"{self.spec.name} did not stop within {grace:.0f} s: killed")
            _signal(process, signal.SIGKILL)
            await process.wait()

    async def _spawn(self) -> None:
        self.spec.ready_file.unlink(missing_ok=True)
        with self.spec.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.spec.defaults, **os.environ, **self.spec.environment},
                start_new_session=True,  # Ctrl-C reaches the supervisor alone
            )

    async def _until_ready(self, timeout: float) -> str:
        assert self._process is not None
        clock = asyncio.get_running_loop().time
        deadline, tell, told = clock() + timeout, clock() + TELL_S, ""
        while clock() < deadline:
            if address := _read_line(self.spec.ready_file):
                return address
            if self._process.returncode is not None:
                raise StartError(f"{self.spec.name} did not start: {self._last_words()}")
            if clock() > tell:
                tell, told = clock() + TELL_S, self._tell(told)
            await asyncio.sleep(_POLL_S)
        raise StartError(f"{self.spec.name} is not ready after {timeout:.0f} s")

    def _tell(self, told: str) -> str:
        """What its start is about now, told unless it was `told` before."""
        about = last_line(self.spec.log_file, STAGE).partition(STAGE)[2]
        if about and about != told:
            self._report(f"{self.spec.name} {about}")
        return about

    def _last_words(self) -> str:
        code = self._process.returncode if self._process else None
        return last_words(self.spec.log_file) or f"exit status {code}, without a word"

    async def _keep(self) -> None:
        deaths = 0
        while True:
            lifetime = await self._outlive()
            deaths = self._policy.deaths_in_a_row(deaths, lifetime)
            pause = self._policy.pause(deaths)
            self._report(f"{self.spec.name} died; starting it again in {pause:.2g} s")
            await asyncio.sleep(pause)
            await self._spawn()

    async def _outlive(self) -> float:
        assert self._process is not None
        clock = asyncio.get_running_loop().time
        born = clock()
        await self._process.wait()
        return clock() - born


class Supervisor:
    """A set of children that live and end together.

    `report` gets one line for everything a person should know.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        policy: RestartPolicy = RestartPolicy(),
        grace: float = 10.0,
        start_timeout: float = START_TIMEOUT_S,
    ) -> None:
        self._report = report
        self._policy = policy
        self._grace = grace
        self._start_timeout = start_timeout
        self._children: list[Child] = []

    @property
    def pids(self) -> dict[str, int]:
        """The process id of every child that runs, by name."""
        return {child.spec.name: child.pid for child in self._children if child.pid is not None}

    async def start(self, specs: Sequence[ProcessSpec]) -> list[str]:
        """Start these at once and wait for all; their addresses, in order.

        Raises StartError with the first failure; the others are left to `stop`.
        """
        children = [Child(spec, self._report, self._policy) for spec in specs]
        self._children += children
        async with _first_error() as group:
            starts = [group.create_task(child.start(self._start_timeout)) for child in children]
        return [start.result() for start in starts]

    async def stop(self) -> None:
        """End every child, the last started first, all within the grace time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._grace
        for child in reversed(self._children):
            await child.stop(max(deadline - clock(), 0.5))
        self._children.clear()


@contextlib.asynccontextmanager
async def _first_error() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error bare."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _read_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def last_words(path: Path) -> str:
    """Why the process that wrote a log ended: its own last line of that, else the last one at all.

    Libraries may write behind it: NCCL does, of a process that ends early.
    """
    own = filter(_OWN_WORDS.match, reversed(_lines(path)))
    return next(own, "") or last_line(path)


def last_line(path: Path, mark: str = "") -> str:
    """The last line of a log that says something, and has `mark` in it."""
    return next((line for line in reversed(_lines(path)) if line and mark in line), "")


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(errors="replace").splitlines()]
    except FileNotFoundError:
        return []
