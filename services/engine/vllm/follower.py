"""The program of another rank than 0: it takes the same steps, until the parent is done or gone.

    python -m services.engine.vllm.follower LINK PARENT RANK

LINK is an open file of its parent's.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from services.engine.vllm.others import LastWords, Order
from services.runtime.affinity import keep_to
from services.runtime.logs import in_a_line
from services.runtime.tether import die_with


def follow(link: Connection[Any, Any], rank: int) -> int:
    """Follow rank 0; the exit status."""
    try:
        _follow(link, rank)
    except EOFError:
        return 0
    except Exception as error:
        with suppress(OSError):
            link.send(LastWords(in_a_line(error)))
        return 1
    return 0


def _follow(link: Connection[Any, Any], rank: int) -> None:
    from services.engine.vllm.loading import load_part

    link.send(None)
    order: Order = link.recv()
    keep_to(order.cpus)
    order.enter(rank)
    part = load_part(order.spec)
    link.send(part.loaded)
    # Written by rank 0 to a pair of sockets that nobody else holds.
    while message := link.recv_bytes():
        part.step(pickle.loads(message))


def main() -> None:
    """Follow until the parent is done or gone."""
    handle, parent, rank = map(int, sys.argv[1:])
    die_with(parent)
    # Whoever stops a whole group of processes means rank 0, which drains first.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Not by way of the interpreter's own end: it would wait for what a lost rank left behind.
    os._exit(follow(Connection(handle), rank))


if __name__ == "__main__":
    main()
