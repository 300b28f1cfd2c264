"""The processes of the other ranks, as rank 0 sees them."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, Self

from services.contract.errors import StartError
from services.engine.machines import LOOPBACK, Machines
from services.engine.spec import ModelSpec
from services.engine.vllm import meeting
from services.engine.vllm.others import NEWS_SECONDS, Child, Follower, Order
from services.runtime.logs import in_a_line
from services.runtime.ports import free_port

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
"""How long a forward may take. Ranks that wait for each other within one have no end of it."""
STANDS_STILL = "a forward does not end: a rank stands still"
_END_SECONDS = 5.0


class Ranks:
    """The other ranks of a model over `size` processes. Begin it in the thread that ends last.

    Those of this machine are started on the way in, those of others are let in as they come; all
    are ended on the way out. When one of them ends before, one line says which and why, and this
    process ends with status 1.
    """

    def __init__(
        self,
        size: int,
        *,
        cpus: Sequence[int] = (),
        machines: Machines | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`cpus`: cores of all ranks of a machine together, rank 0 included; none = any."""
        self._size = size
        self._machines = machines or Machines()
        self._here = self._machines.ranks(size)
        self._server: socket.socket | None = None
        self._complete = threading.Event()
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
        return divided(self._cpus, 0, len(self._here))

    def __enter__(self) -> Self:
        """Raises StartError where other machines could not reach this one."""
        secret = b""
        if self._machines.count > 1:
            secret = self._machines.secret()
            self._server = meeting.listen(self._machines)
        for rank in self._here[1:]:
            self._take(Child(rank))
        _in_the_background("meeting", self._admit, secret)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        if self._server is not None:
            self._server.close()
        for one in self._followers if self._serving else ():
            one.dismiss()
        for one in self._followers:
            one.stop(_END_SECONDS if self._serving else 0.0)

    # --- until they serve -------------------------------------------------------

    def load(self, spec: ModelSpec) -> None:
        """Have the others load the model, too; this process is to do so at once."""
        if not self._complete.wait(meeting.PATIENCE_SECONDS):
            here = {0, *(one.rank for one in self._followers)}
            missing = ", ".join(str(rank) for rank in range(self._size) if rank not in here)
            raise StartError(
                f"tensor_parallel: of {self._size} ranks these did not come: {missing}"
            )
        self._hear()
        each, host = len(self._here), self._machines.host
        # Where torch may let the ranks meet.
        port = free_port(LOOPBACK if host == LOOPBACK else "")
        order = Order(spec, host, port, each)
        for one in self._followers:
            one.link.send(replace(order, cpus=divided(self._cpus, one.rank % each, each)))
        order.enter(0)

    def serve(self) -> list[Any]:
        """Wait until they have loaded it; what each of them has. They then follow."""
        brought = self._hear()
        self._serving = True
        return brought

    def _admit(self, secret: bytes) -> None:
        if self._server is not None:
            others = range(len(self._here), self._size)
            shape = self._size, self._machines.count
            with suppress(OSError):  # closed on the way out
                for rank, link in meeting.admit(self._server, secret, *shape, others):
                    self._take(Follower(rank, link))
                self._complete.set()
            self._server.close()
        else:
            self._complete.set()

    def _take(self, follower: Follower) -> None:
        self._followers.append(follower)
        _in_the_background(f"rank {follower.rank}", self._watch, follower)

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
        if self._lost.wait(NEWS_SECONDS):
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
                one.kill()
            # A forward that waits for a dead rank cannot be ended in another way.
            os._exit(1)


def _in_the_background(name: str, work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name=name, daemon=True).start()


def divided(cpus: Sequence[int], rank: int, size: int) -> tuple[int, ...]:
    """The cores of one rank: a run of neighbours, or all of them where there are too few."""
    return tuple(cpus[rank * len(cpus) // size : (rank + 1) * len(cpus) // size]) or tuple(cpus)
