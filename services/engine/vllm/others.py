"""Another rank, as rank 0 sees it: its link, and its process where that is of this machine."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from services.engine.machines import LOOPBACK
from services.engine.spec import ModelSpec
from services.engine.vllm.meeting import Link, hang_up

NEWS_SECONDS = 1.0
"""How long the news of a dead process may take, after what it broke."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """Why a rank ends, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Order:
    """What another rank is told to load.

    `host`, `port`: where the ranks meet; `each`: how many are on one machine; `cpus`: its cores.
    """

    spec: ModelSpec
    host: str
    port: int
    each: int
    cpus: Sequence[int] = ()

    def enter(self, rank: int) -> None:
        """Tell torch and vLLM which rank this process is."""
        told: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": rank % self.each,
            "WORLD_SIZE": self.spec.tensor_parallel,
        }
        told |= {"MASTER_ADDR": self.host, "MASTER_PORT": self.port}
        os.environ.update({name: str(value) for name, value in told.items()})
        if self.host != LOOPBACK:
            return
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", (names or ["lo"])[0])


class Follower:
    """One other rank: the link to it."""

    def __init__(self, rank: int, link: Link) -> None:
        self.rank, self.link = rank, link
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last_words = ""
        self._ended = threading.Event()

    def listen(self) -> str:
        """Take in what it says until its end; how it ended."""
        with suppress(EOFError, OSError):
            while True:
                match self.link.recv():
                    case LastWords(text):
                        self._last_words = text
                    case value:
                        self.said.put(value)
        self._ended.set()
        return self._last_words or self._how_it_ended()

    def dismiss(self) -> None:
        """Ask it to leave; it has to be following."""
        with suppress(OSError):
            self.link.send_bytes(b"")

    def stop(self, grace: float) -> None:
        """End it if it does not by itself within `grace` seconds: it ends when its link does."""
        self._ended.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        hang_up(self.link)

    def _how_it_ended(self) -> str:
        return "closed its link"


class Child(Follower):
    """One that is a process of this machine."""

    def __init__(self, rank: int) -> None:
        ours, theirs = Pipe()
        super().__init__(rank, ours)
        with theirs:
            self.process = subprocess.Popen(
                program("follower", theirs.fileno(), os.getpid(), rank),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches rank 0 alone
            )

    def stop(self, grace: float) -> None:
        """End the process if it does not by itself within `grace` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.kill()
        self.process.wait()

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()

    def _how_it_ended(self) -> str:
        try:
            status = self.process.wait(NEWS_SECONDS)
        except subprocess.TimeoutExpired:
            return super()._how_it_ended()
        return f"ended with status {status}" if status >= 0 else signal.Signals(-status).name


def program(module: str, *arguments: object) -> Sequence[str]:
    """The command of a rank's process."""
    # -P: a folder named like one of our packages must not be imported from here.
    start = (sys.executable, "-P", "-m", f"services.engine.vllm.{module}")
    return (*start, *map(str, arguments))
