"""A process of the `paceline` command, forked from one that has imported what it needs.

Importing PyTorch and transformers takes seconds of a core, and a cluster has some six processes,
which faults start again and again. Each is a process of its own as far as signals, sockets, memory
and its end go; how the command starts one is tested where the command is.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from services.engine.native.engine import NativeEngine
    from services.engine.port import Segment
    from services.engine.skip_mask import SkipMask

PRELOADED = (
    "orchestrator.main",
    "services.cluster.process",
    "services.drafter.main",
    "services.engine.eagle.loading",
    "services.engine.native",
    "services.verifier.main",
    "transformers.models.llama.modeling_llama",
)
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(PRELOADED))


class Forked:
    """Runs `paceline` with these arguments, in a session of its own; what it says goes to `log`.

    It dies with this process. `step_seconds`: what each pass of its model takes on top, without
    a core, as on a device of its own.
    """

    def __init__(self, arguments: Sequence[str], log: Path, step_seconds: float = 0.0) -> None:
        run = (tuple(arguments), str(log), dict(os.environ), step_seconds)
        self._process = _SERVER.Process(target=_paceline, args=run)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, of a signal its number below zero; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Its exit status. Raises TimeoutExpired where it does not end in time."""
        self._process.join(seconds)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", seconds)
        return status


def _paceline(
    arguments: Sequence[str], log: str, environment: Mapping[str, str], step_seconds: float
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for file, flags, numbers in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, (1, 2)),
    ):
        opened = os.open(file, flags, 0o600)
        for number in numbers:
            os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["paceline", *arguments, "--tether", str(os.getppid())]
    if step_seconds:
        _slow_down(step_seconds)
    from paceline.__main__ import main

    try:
        sys.exit(main())
    finally:
        atexit._run_exitfuncs()


def _slow_down(seconds: float) -> None:
    from services.engine.native.engine import NativeEngine

    forward = NativeEngine.forward

    def slowed(
        self: NativeEngine, segments: Sequence[Segment], skip: SkipMask | None = None
    ) -> list[Tensor]:
        if segments:
            time.sleep(seconds)
        return forward(self, segments, skip)

    NativeEngine.forward = slowed  # type: ignore[method-assign]
