"""Progress of long runs, and how they are stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from services.training.reporting import Reporter, Stopped

INTERRUPTED = 130
_EVERY_S = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSign:
    """Turns Ctrl-C and SIGTERM into a stop between two steps; a second one ends at once."""

    def __init__(self) -> None:
        self._raised = False

    def check(self) -> None:
        """Raise Stopped if a signal came."""
        if self._raised:
            raise Stopped("a signal came")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take the signals meanwhile."""
        before = {number: signal.signal(number, self._take) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, *_: object) -> None:
        if self._raised:
            raise KeyboardInterrupt
        self._raised = True


@contextmanager
def reporting(stop: StopSign) -> Iterator[Reporter]:
    """Bars in a terminal, lines elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        yield Lines(stop)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, speed_estimate_period=120) as progress:
        yield Bars(progress, stop)


class Bars:
    """A bar for each stage, in a terminal."""

    def __init__(self, progress: Progress, stop: StopSign) -> None:
        self._progress, self._stop = progress, stop
        self._task: TaskID | None = None

    def say(self, line: str) -> None:
        """Print above the bars."""
        self._stop.check()
        self._progress.console.print(line, style="dim", markup=False)

    def stage(self, name: str, total: int, done: int) -> None:
        """Begin a bar."""
        self._task = self._progress.add_task(name, total=total, completed=done, figures="")

    def advance(self, done: int, figures: str = "") -> None:
        """Move it; raises Stopped after a signal."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, figures=figures)
        self._stop.check()


class Lines:
    """A line now and then, where there is no terminal."""

    def __init__(self, stop: StopSign) -> None:
        self._stop = stop
        self._name, self._total, self._first = "", 0, 0
        self._began = self._told = 0.0
        self._ended = False

    def say(self, line: str) -> None:
        """Print it."""
        self._stop.check()
        print(line, flush=True)

    def stage(self, name: str, total: int, done: int) -> None:
        """Begin a stage."""
        self._name, self._total, self._first = name, total, done
        self._began = self._told = time.monotonic()
        self._ended = done >= total
        print(f"{name}: {done} of {total}", flush=True)

    def advance(self, done: int, figures: str = "") -> None:
        """Print progress every half minute; raises Stopped after a signal."""
        now = time.monotonic()
        ended = done >= self._total and not self._ended
        if now - self._told >= _EVERY_S or ended:
            self._told, self._ended = now, done >= self._total
            left = time_left(done - self._first, self._total - done, now - self._began)
            tail = f"; {figures}" if figures else ""
            print(f"{self._name}: {done} of {self._total}, {left} left{tail}", flush=True)
        self._stop.check()


def time_left(done: int, left: int, seconds: float) -> str:
    """How long `left` units take when `done` took so many seconds, as h:mm:ss."""
    if done <= 0:
        return "?"
    minutes, rest = divmod(round(left * seconds / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
