"""`paceline distill`: a small drafter from a target, with progress and a clean stop."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

from services.common.errors import PacelineError, StartError
from services.console.process import complain
from services.distill.options import DistillOptions
from services.distill.reporting import Reporter, Stopped
from services.distill.run import distill

INTERRUPTED = 130
_EVERY_S = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_distill(given: dict[str, Any]) -> int:
    """Make a drafter; the exit status (130 = stopped, and the same command goes on)."""
    # What transformers has to say about a model's files is not for this command's lines.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stop = StopSign()
    try:
        options = asked(given)
    except StartError as error:
        return complain("distill", error, status=1)
    try:
        with stop.watching(), _reporter(stop) as reporter:
            folder = distill(options, reporter)
    except (Stopped, KeyboardInterrupt):
        return _stopped(options)
    except PacelineError as error:
        return complain("distill", error, status=1)
    print(f"{folder} is ready, its card is {folder / 'README.md'};", flush=True)
    print(f"{options.work_folder} with texts and checkpoint is not needed any more", flush=True)
    return 0


def _stopped(options: DistillOptions) -> int:
    kept = options.work_folder
    told = f"the same command goes on from {kept}" if kept.exists() else "nothing was written yet"
    return complain("distill", Stopped(f"stopped; {told}"), status=INTERRUPTED)


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
def _reporter(stop: StopSign) -> Iterator[Reporter]:
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
        """Tell how far it is every half minute; raises Stopped after a signal."""
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


def numbers_of(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers from `0,1,5-7`; StartError, naming the option, for anything else."""
    numbers: list[int] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        run = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not run:
            raise StartError(f"{option}: {text!r} is no list like 0,1,28-29")
        numbers += run
    return tuple(numbers)


def fractions_of(option: str, text: str) -> tuple[float, ...]:
    """Numbers from `0,0.7,1`; StartError, naming the option, for anything else."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise StartError(f"{option}: {text!r} is no list of numbers like 0,0.7,1") from None


def asked(given: dict[str, Any]) -> DistillOptions:
    """The options of a command line; raises StartError for a list that is none."""
    lists = {
        "layers": numbers_of("--layers", given["layers"]),
        "cpus": numbers_of("--cpus", given["cpus"]),
        "temperatures": fractions_of("--temperatures", given["temperatures"]),
        "exclude": tuple(given["exclude"] or ()),
    }
    command = shlex.join(["paceline", *sys.argv[1:]])
    return DistillOptions(**{**given, **lists, "command": command})
