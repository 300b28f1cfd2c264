"""The processes of the other ranks, as rank 0 sees them."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, Self

from services.engine.spec import ModelSpec
from services.runtime.logs import in_a_line

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
PATIENCE_SECONDS = 300.0
"""How long a forward may take. Ranks that wait for each other within one have no end of it."""
STANDS_STILL = "a forward does not end: a rank stands still"
_NEWS_SECONDS = 1.0
"""How long the news of a dead process may take, after what it broke."""
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LastWords:
    """Why a rank ends, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Order:
    """What another rank is told to load; `port`: where the ranks meet; `cpus`: its cores."""

    spec: ModelSpec
    port: int
    cpus: Sequence[int] = ()

    def enter(self, rank: int) -> None:
        """Tell torch and vLLM which rank this process is."""
        told: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.spec.tensor_parallel,
        }
        told |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": self.port}
        os.environ.update({name: str(value) for name, value in told.items()})
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", (names or ["lo"])[0])


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
        for one in self._followers:
            one.stop(_END_SECONDS if self._serving else 0.0)

    # --- until they serve -------------------------------------------------------

    def load(self, spec: ModelSpec) -> None:
        """Have the others load the model, too; this process is to do so at once."""
        self._hear()
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port: int = free.getsockname()[1]
        order = Order(spec, port)
        for one in self._followers:
            one.link.send(replace(order, cpus=divided(self._cpus, one.rank, self._size)))
        order.enter(0)

    def serve(self) -> list[Any]:
        """Wait until they have loaded it; what each of them has. They then follow."""
        brought = self._hear()
        self._serving = True
        return brought

    def _hear(self) -> list[Any]:
        return [one.said.get() for one in self._followers]

    # --- while they serve -------------------------------------------------------

    @contextmanager
    def together(self, step: object) -> Iterator[None]:
        """Around a step of this process: the others take the same one.

        One that fails, or takes longer than a rank is waited for, ends this process: the ranks
        are out of step.
        """
        message = pickle.dumps(step, pickle.HIGHEST_PROTOCOL)
        patience = threading.Timer(self._patience, self._say_and_end, (STANDS_STILL,))
        patience.daemon = True
        patience.start()
        try:
            for one in self._followers:
                one.link.send_bytes(message)
            yield
        except Exception as error:
            self.settle()
            self._say_and_end(f"a forward failed: {in_a_line(error)}")
        finally:
            patience.cancel()

    # --- the end ----------------------------------------------------------------

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
    program = (sys.executable, "-P", "-m", "services.engine.vllm.follower")
    return (*program, str(link), str(os.getpid()), str(rank))


def divided(cpus: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """The cores of one rank: a run of neighbours, or all of them where there are too few."""
    return tuple(cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size]) or tuple(cpus)
