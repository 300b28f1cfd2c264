"""Processes with a health port and JSON logs, and what they say there."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from testkit.child import child
from tests.processes.conftest import COMMAND, START_SECONDS
from tests.waiting import wait_until

ANSWER_SECONDS = 30.0


class Says(NamedTuple):
    """Which names are SERVING."""

    liveness: bool
    startup: bool
    readiness: bool


LOADING = Says(liveness=True, startup=False, readiness=False)
WAITING = Says(liveness=True, startup=True, readiness=False)
READY = Says(liveness=True, startup=True, readiness=True)


@dataclass
class Probed:
    """A running process."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def address(self) -> str:
        """Of its health port."""
        return (self.folder / "health").read_text().strip()

    @property
    def served_at(self) -> str:
        """What it wrote to the file `ready`, if told to."""
        return (self.folder / "ready").read_text().strip()

    def serves(self, name: str) -> bool:
        """Whether that name is SERVING."""
        with grpc.insecure_channel(self.address) as channel:
            asked = health_pb2.HealthCheckRequest(service=name)
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=ANSWER_SECONDS)
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def says(self) -> Says:
        # What comes last is asked first: they change one after the other meanwhile.
        return Says(**{name: self.serves(name) for name in reversed(Says._fields)})

    def until(self, wanted: Says) -> list[Says]:
        """Ask until it says so; all that it said."""
        said: list[Says] = []

        def asked() -> bool:
            said.append(self.says())
            return said[-1] == wanted

        wait_until(asked, START_SECONDS, lambda: (said[-1], self.log()))
        return said

    def log(self) -> list[dict[str, Any]]:
        """Its log lines; every line is one JSON object."""
        lines = (self.folder / "log").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def ends(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(timeout=60)


@contextmanager
def probed(
    folder: Path, *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[Probed]:
    """A process from the moment its health port is open; `arguments` begin with its role."""
    health = folder / "health"
    own = ["--port", "0", "--health-port", "0", "--health-file", str(health), "--log-json"]
    command = [*COMMAND, *map(str, arguments), *own]
    with (folder / "log").open("wb") as log, child(command, health, environment, stderr=log) as one:
        yield Probed(one, folder)
