"""The program of a process that vets response formats; see `services.grammar.vetting`.

    python -m services.grammar.vetting_child LINK PARENT SECONDS BYTES

LINK is an open file descriptor: a format comes as JSON [kind, [text, …], [special token, …]],
and the answer is
[complaint, bytes when compiled, seconds of CPU, grammar, whether this process goes on].
A job may take SECONDS of CPU time, and this process BYTES of memory; beyond that it dies.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from services.runtime.affinity import give_way
from services.runtime.tether import die_with

# As a share of its memory limit: a process that has grown so much is replaced.
GROWN_SHARE = 0.25
# Half of the smallest thread stack, so that what passes here overflows no stack elsewhere.
STACK_BYTES = 1 << 20
# Serving processes go first.
NICENESS = 10


def main() -> None:
    """Vet until the parent is done or gone."""
    handle, parent = int(sys.argv[1]), int(sys.argv[2])
    seconds, most = float(sys.argv[3]), int(sys.argv[4])
    die_with(parent)
    # A signal to the whole process group is meant for the parent.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _confine(most)
    link: Connection[Any, Any] = Connection(handle)
    from services.contract.types import FormatKind, ResponseFormat
    from services.grammar.formats import Checked, check

    goes_on = True
    with suppress(EOFError, OSError):
        while goes_on:
            kind, source, special = json.loads(link.recv_bytes())
            before, began = _peak(), time.process_time()
            # The signal has no handler, so the kernel kills this process, whatever it does.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                told = check(ResponseFormat(FormatKind(kind), tuple(source)), special)
            except MemoryError:
                os.abort()
            except BaseException as error:
                told = Checked(f"it cannot be compiled ({type(error).__name__})")
            signal.setitimer(signal.ITIMER_PROF, 0)
            taken, spent = max(0, _peak() - before), time.process_time() - began
            goes_on = taken < GROWN_SHARE * most
            link.send_bytes(
                json.dumps([told.complaint, taken, spent, told.grammar, goes_on]).encode()
            )


def _confine(most: int) -> None:
    """Limit this process from now on."""
    give_way(NICENESS)
    with suppress(OSError):
        # When memory runs out, the kernel kills this process first.
        Path("/proc/self/oom_score_adj").write_text("1000")
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, STACK_BYTES),
        (resource.RLIMIT_DATA, most),
    ):
        hard = resource.getrlimit(kind)[1]
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, hard))


def _peak() -> int:
    """Peak memory of this process in bytes since the last call."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Begin anew; see proc(5).
    return peak


if __name__ == "__main__":
    main()
