"""One process of a cluster, started, signalled, and started again."""

import contextlib
import signal
import time
from dataclasses import dataclass, field

from services.cluster.supervisor import ProcessSpec, last_words
from services.contract.errors import StartError
from testkit.chaos.forked import Forked
from testkit.chaos.proxy import Proxy

_POLL_SECONDS = 0.02
_KILL_SECONDS = 30.0


@dataclass
class Member:
    """A process with a proxy before it: others know it by the proxy's address alone.

    `spec.argv`: what `paceline` is told. `step_seconds`: see `Forked`.
    """

    spec: ProcessSpec
    role: str
    proxy: Proxy
    metrics: str = ""
    step_seconds: float = 0.0
    process: Forked | None = None
    started: int = 0
    statuses: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in the registry and in reports."""
        return self.spec.name

    @property
    def address(self) -> str:
        """Where others reach it."""
        return self.proxy.address

    @property
    def alive(self) -> bool:
        """Whether the process runs, or is stopped."""
        return self.process is not None and self.process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether it has said that it serves."""
        return self.alive and self.spec.ready_file.exists()

    def start(self) -> None:
        """Start it, and do not wait."""
        self.spec.ready_file.unlink(missing_ok=True)
        self.process = Forked(self.spec.argv, self.spec.log_file, self.step_seconds)
        self.started += 1

    def check(self) -> None:
        """Raises StartError, with its own last line, for a process that has ended."""
        if not self.alive:
            status = self.process.poll() if self.process else None
            raise StartError(f"{self.name} ended ({status}): {last_words(self.spec.log_file)}")

    def wait(self, timeout: float) -> None:
        """Wait until it serves. Raises StartError."""
        deadline = time.monotonic() + timeout
        while not self.serves:
            self.check()
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} is not ready after {timeout:.0f} s")
            time.sleep(_POLL_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is still there."""
        assert self.process is not None
        if number is signal.SIGKILL:
            self.spec.ready_file.unlink(missing_ok=True)
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(_KILL_SECONDS)

    def end(self, timeout: float) -> int:
        """SIGTERM; the exit status. Raises TimeoutExpired where it does not end in time."""
        assert self.process is not None
        self.send(signal.SIGTERM)
        status = self.process.wait(timeout)
        self.statuses.append(status)
        return status

    def put_down(self) -> None:
        """End it, however it is."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(_KILL_SECONDS)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def words(self) -> str:
        """Its log so far."""
        with contextlib.suppress(OSError):
            return self.spec.log_file.read_text(errors="replace")
        return ""
