"""The processes of the other ranks, as rank 0 sees them."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Self

from services.engine.native.parallel.messages import LastWords
from services.engine.native.parallel.shards import (
    LOOPBACK,
    Shard,
    check_device,
    check_plan,
    divided,
    join,
    leave,
    read_shard,
)
from services.engine.spec import ModelSpec
from services.runtime.logs import in_a_line

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 20.0
"""How long a rank waits for another within a forward; both compute the same there."""
_NEWS_SECONDS = 1.0
"""How long the news of a dead process may take, after what it broke."""
_END_SECONDS = 5.0


class Follower:
    """One other rank: its process and the link to it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = Pipe()
        self.link: Connection[Any, Any] = ours
        with theirs:
            self.process = subprocess.Popen(
                _command(theirs.fileno(), rank),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches rank 0 alone
            )
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._last_words = ""

    def listen(self) -> str:
        """Take in what it says until its end; how it ended."""
        with suppress(EOFError, OSError):
            while True:
                match self.link.recv():
                    case LastWords(text):
                        self._last_words = text
                    case value:
                        self.said.put(value)
        return self._last_words or self._how_it_ended()

    def dismiss(self) -> None:
        """Ask it to leave; it has to be following."""
        with suppress(OSError):
            self.link.send_bytes(b"")

    def stop(self, grace: float) -> None:
        """End the process if it does not by itself within `grace` seconds."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        self.process.kill()
        self.process.wait()

    def _how_it_ended(self) -> str:
        try:
            status = self.process.wait(_NEWS_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its link"
        return f"ended with status {status}" if status >= 0 else signal.Signals(-status).name


class Ranks:
    """The other ranks of a model over `size` processes. Begin it in the thread that ends last.

    They are started on the way in and ended on the way out. When one of them ends before,
    one line says which and why, and this process ends with status 1.
    """

    def __init__(
        self,
        size: int,
        *,
        cpus: Sequence[int] = (),
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`cpus`: cores of all ranks together, rank 0 included; none = any."""
        self._size = size
        self._cpus = tuple(cpus)
        self._patience = patience
        self._ending = threading.Lock()
        self._lost = threading.Event()
        self._closing = False
        self._serving = False
        self._followers: list[Follower] = []

    @property
    def cpus(self) -> tuple[int, ...]:
        """The cores of rank 0."""
        return divided(self._cpus, 0, self._size)

    def __enter__(self) -> Self:
        for rank in range(1, self._size):
            follower = Follower(rank)
            self._followers.append(follower)
            name = f"rank {rank}"
            threading.Thread(target=self._watch, args=(follower,), name=name, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for one in self._followers if self._serving else ():
            one.dismiss()
        leave()
        for one in self._followers:
            one.stop(_END_SECONDS if self._serving else 0.0)

    # --- until they serve -------------------------------------------------------

    def read(self, folder: Path, spec: ModelSpec) -> Any:
        """Have every rank read its part of the model in `folder`; that of rank 0.

        Raises StartError for a model or a device that cannot be split.
        """
        check_device(spec.device, self._size)
        check_plan(folder, spec.model, self._size)
        self._hear()
        with socket.create_server((LOOPBACK, 0)) as listening:
            port: int = listening.getsockname()[1]
            shard = Shard(folder, spec, port, self._patience)
            for one in self._followers:
                cpus = divided(self._cpus, one.rank, self._size)
                one.link.send(replace(shard, cpus=cpus))
            join(shard, 0, listening)
        model = read_shard(shard)
        self.meet()
        return model

    def meet(self) -> list[Any]:
        """Wait, however long it takes, until all are here; what they bring."""
        brought = self._hear()
        for one in self._followers:
            one.link.send(None)
        return brought

    def serve(self) -> list[Any]:
        """Meet for the last time; from now on they follow what is told."""
        brought = self.meet()
        self._serving = True
        return brought

    def _hear(self) -> list[Any]:
        return [one.said.get() for one in self._followers]

    # --- while they serve -------------------------------------------------------

    def tell(self, message: bytes) -> None:
        """Tell all the same; never waits for them."""
        for one in self._followers:
            one.link.send_bytes(message)

    # --- the end ----------------------------------------------------------------

    def give_up(self, error: BaseException) -> NoReturn:
        """End: rank 0 is out of step with the others."""
        self.settle()
        self._say_and_end(f"a forward failed: {in_a_line(error)}")

    def settle(self) -> None:
        """After an error: if a rank was lost, which then is the reason, never return."""
        if self._lost.wait(_NEWS_SECONDS):
            threading.Event().wait()

    def _watch(self, follower: Follower) -> None:
        reason = follower.listen()
        if not self._closing:
            self._lost.set()
            self._say_and_end(f"rank {follower.rank} of {self._size} is lost: {reason}")

    def _say_and_end(self, reason: str) -> NoReturn:
        with self._ending:
            logger.error("tensor_parallel: %s; this verifier ends", reason)
            for one in self._followers:
                one.process.kill()
            # A forward that waits for a dead rank cannot be ended in another way.
            os._exit(1)


def _command(link: int, rank: int) -> Sequence[str]:
    # -P: a folder named like one of our packages must not be imported from here.
    program = (sys.executable, "-P", "-m", "services.engine.follower")
    return (*program, str(link), str(os.getpid()), str(rank))
