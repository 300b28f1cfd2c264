"""The program of a rank that follows another process; see `services.engine.native.parallel`.

    python -m services.engine.follower LINK PARENT RANK

LINK is an open file of its parent's.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from services.runtime.tether import die_with


def main() -> None:
    """Follow until the parent is done or gone."""
    handle, parent, rank = map(int, sys.argv[1:])
    die_with(parent)
    # Whoever stops a whole group of processes means rank 0, which drains first.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from services.engine.native.parallel.following import follow

    link: Connection[Any, Any] = Connection(handle)
    # Not by way of the interpreter's own end: it would wait for what a lost rank left behind.
    os._exit(follow(link, rank))


if __name__ == "__main__":
    main()
