"""How ranks of other machines reach rank 0: by one TCP port, open until all of them are there.

Each side proves that it knows one secret before the other takes what it says for more than a few
bytes; the proof is the one of Python's own `multiprocessing`. What is said then is pickled, and
nothing is encrypted, as between ranks everywhere: who is on the way between them can do what they
can.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

from services.contract.errors import StartError
from services.engine.machines import Machines

logger = logging.getLogger(__name__)

Link: TypeAlias = "Connection[Any, Any]"

GREETING_SECONDS = 5.0
"""How long who connects has to prove that it belongs here."""
PATIENCE_SECONDS = 1800.0
"""How long the ranks of a model wait for each other at the start."""
MOST_GREETED = 64
"""At once; others wait."""
_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_HELLO = struct.Struct("!III")  # the rank, of how many, on how many machines
_LONGEST = 256
_LAST_WORDS_SECONDS = 5.0
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
"""A machine that is gone is noticed within half a minute."""


class TurnedAwayError(Exception):
    """Who connected is none of the ranks that are waited for; one line says why."""


def listen(machines: Machines) -> socket.socket:
    """Where ranks of other machines are waited for. Raises StartError."""
    family = socket.AF_INET6 if ":" in machines.listen else socket.AF_INET
    try:
        return socket.create_server((machines.listen, machines.port), family=family)
    except OSError as error:
        where = f"{machines.listen}, port {machines.port}"
        raise StartError(f"rank_address: cannot listen at {where}: {error}") from error


def admit(
    server: socket.socket, secret: bytes, size: int, machines: int, ranks: Collection[int]
) -> Iterator[tuple[int, Link]]:
    """Each of these ranks as it comes, until all are there; others are turned away.

    Those who connect are greeted together: one that says nothing delays no other.
    """
    greeting = _Greeting(secret, (size, machines), ranks)
    with closing(greeting):
        for _ in ranks:
            yield greeting.next_of(server)


class _Greeting:
    """Greets each peer in a thread of its own."""

    def __init__(self, secret: bytes, shape: tuple[int, int], ranks: Collection[int]) -> None:
        self._secret, self._shape, self._waiting = secret, shape, set(ranks)
        self._lock = threading.Lock()
        self._come: queue.SimpleQueue[tuple[int, Link]] = queue.SimpleQueue()
        self._room = threading.Semaphore(MOST_GREETED)
        self._over = False

    def next_of(self, server: socket.socket) -> tuple[int, Link]:
        """The next rank that is there. Raises OSError once the server is closed."""
        server.settimeout(_LOOK_SECONDS)
        while True:
            with suppress(queue.Empty):
                return self._come.get_nowait()
            if not self._room.acquire(timeout=_LOOK_SECONDS):
                continue
            try:
                peer, (host, *_) = server.accept()
            except TimeoutError:
                self._room.release()
                continue
            threading.Thread(
                target=self._meet, args=(peer, host), name=f"greet {host}", daemon=True
            ).start()

    def close(self) -> None:
        """Nobody is waited for any more: what comes yet is let go."""
        with self._lock:
            self._over = True
        while not self._come.empty():
            self._come.get()[1].close()

    def _meet(self, peer: socket.socket, host: str) -> None:
        try:
            rank, link = _greet(peer, self._secret, self._shape, self._claim)
        except (TurnedAwayError, AuthenticationError, EOFError, OSError, struct.error) as error:
            reason = str(error) or "it said nothing"
            logger.warning("tensor_parallel: turned %s away: %s", host, reason)
        else:
            with self._lock:
                if not self._over:
                    self._come.put((rank, link))
                    return
            link.close()
        finally:
            self._room.release()

    @contextmanager
    def _claim(self, rank: int) -> Iterator[bool]:
        """Whether a rank is waited for; then it is no more, unless what is done fails."""
        with self._lock:
            waited = rank in self._waiting
            self._waiting.discard(rank)
        try:
            yield waited
        except BaseException:
            with self._lock:
                self._waiting |= {rank} if waited else set()
            raise


def join(machines: Machines, secret: bytes, rank: int, size: int) -> Link:
    """The link of a rank of another machine to rank 0, once that is there. Raises StartError."""
    where = machines.address
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            peer = socket.create_connection((machines.host, machines.port), GREETING_SECONDS)
            return _introduce(peer, secret, rank, (size, machines.count))
        except AuthenticationError as error:
            raise StartError(f"rank 0 at {where} knows another secret") from error
        except TurnedAwayError as error:
            raise StartError(f"rank 0 at {where}: {error}") from error
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                raise StartError(f"rank 0 at {where} is not there: {error}") from error
        time.sleep(_RETRY_SECONDS)


def end_with(link: Link) -> None:
    """End this process when the other end hangs up, even where it waits in a forward for others."""
    hung_up = getattr(select, "POLLRDHUP", None)
    if hung_up is None:  # Linux only
        return
    poll = select.poll()
    poll.register(link.fileno(), hung_up)

    def watch() -> None:
        poll.poll()
        time.sleep(_LAST_WORDS_SECONDS)  # by itself, where it is not in a forward
        os._exit(1)

    threading.Thread(target=watch, name="hang-up", daemon=True).start()


def hang_up(link: Link) -> None:
    """Close a link that another thread may be reading."""
    with suppress(OSError), socket.socket(fileno=os.dup(link.fileno())) as peer:
        peer.shutdown(socket.SHUT_RDWR)


def _greet(
    peer: socket.socket,
    secret: bytes,
    shape: tuple[int, int],
    claim: Callable[[int], AbstractContextManager[bool]],
) -> tuple[int, Link]:
    with _within_bounds(peer) as link:
        deliver_challenge(link, secret)
        answer_challenge(link, secret)
        rank, *theirs = _HELLO.unpack(link.recv_bytes(_HELLO.size))
        with claim(rank) as waited:
            reason = "" if waited else f"rank {rank} is not waited for"
            if tuple(theirs) != shape:
                reason = "it is of {} ranks on {} machines, not of {} on {}".format(*theirs, *shape)
            link.send_bytes(reason.encode())
            if reason:
                raise TurnedAwayError(reason)
        return rank, link


def _introduce(peer: socket.socket, secret: bytes, rank: int, shape: tuple[int, int]) -> Link:
    with _within_bounds(peer) as link:
        answer_challenge(link, secret)
        deliver_challenge(link, secret)
        link.send_bytes(_HELLO.pack(rank, *shape))
        if reason := link.recv_bytes(_LONGEST).decode():
            raise TurnedAwayError(reason)
        return link


@contextmanager
def _within_bounds(peer: socket.socket) -> Iterator[Link]:
    """A link over `peer`, which is cut where what is done takes longer than a greeting may."""
    with peer:
        peer.settimeout(None)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            with suppress(AttributeError, OSError):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        link = Connection(os.dup(peer.fileno()))
        with ExitStack() as where_it_fails:
            where_it_fails.callback(link.close)
            with _cut_after(GREETING_SECONDS, link):
                yield link
            where_it_fails.pop_all()


@contextmanager
def _cut_after(seconds: float, link: Link) -> Iterator[None]:
    timer = threading.Timer(seconds, hang_up, (link,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
