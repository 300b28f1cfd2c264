"""A delay between orchestrators and workers: a relay before each worker.

The worker advertises the relay's address in the registry in place of its own, so that
nothing else knows of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from services.cluster.supervisor import ProcessSpec
from services.contract.errors import StartError

ROLES = ("verifier", "drafter")


def parse_delays(text: str) -> dict[str, float]:
    """Milliseconds each way by role, from `5` or `verifier=5,drafter=1`; raises StartError."""
    given = dict.fromkeys(ROLES, text)
    if "=" in text:
        given = dict(one.split("=", 1) for one in text.split(",") if "=" in one)
    try:
        delays = {role.strip(): float(value) for role, value in given.items()}
    except ValueError:
        raise StartError(f"--delay-ms: {text!r} is no number of milliseconds") from None
    for role, delay in delays.items():
        if role not in ROLES:
            raise StartError(f"--delay-ms: {role!r} is not one of {', '.join(ROLES)}")
        if not 0 <= delay <= 10_000:
            raise StartError(f"--delay-ms: {delay:g} is not within 0..10000")
    return delays


class Network:
    """The relays of a cluster; they end with it. `delays` in milliseconds each way, by role."""

    def __init__(self, delays: Mapping[str, float]) -> None:
        self._delays = delays
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def before(self, worker: ProcessSpec) -> ProcessSpec:
        """The worker as others are to find it."""
        delay = self._delays.get(worker.name.partition("-")[0], 0.0)
        if delay == 0:
            return worker
        return replace(worker, argv=(*worker.argv, "--advertise", self._relay(worker, delay)))

    def _relay(self, worker: ProcessSpec, delay: float) -> str:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "bench.synthetic.relay"),
                *("--delay-ms", str(delay), "--to-file", str(worker.ready_file)),
                *("--tether", str(os.getpid())),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise StartError("the relay of the network delay did not start")
        return address
