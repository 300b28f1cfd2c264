"""A child process that says in a file when it is ready."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_SECONDS = 250.0
STOP_SECONDS = 60.0


@contextmanager
def child(
    command: Sequence[str | Path],
    ready: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = START_SECONDS,
    end: signal.Signals = signal.SIGKILL,
    **options: Any,
) -> Iterator[subprocess.Popen[Any]]:
    """From the moment that `ready` is there; in the end the process gets the signal `end`.

    `environment`: beside this process's own; `seconds`: of a start; `options`: Popen's. Raises
    RuntimeError for one that does not start.
    """
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, **options)
    try:
        deadline = time.monotonic() + seconds
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[1]} did not start: {process.returncode}")
            time.sleep(0.02)
        yield process
    finally:
        process.send_signal(end)
        process.wait(STOP_SECONDS)
