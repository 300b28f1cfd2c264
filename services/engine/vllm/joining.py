"""The ranks of another machine than rank 0's: `paceline verifier --node K`.

    python -m services.engine.vllm.joining PARENT HOST PORT SECRET MACHINES SIZE RANK

is one of them, SECRET a file. It is told what to load when it has joined.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from services.contract.errors import StartError
from services.engine.machines import Machines
from services.engine.vllm.follower import follow
from services.engine.vllm.meeting import end_with, join
from services.engine.vllm.others import program
from services.runtime.tether import die_with

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_SECONDS = 30.0
"""How long the others may go on where one was dismissed."""


def run(machines: Machines, size: int) -> int:
    """Run this machine's ranks until rank 0 dismisses them; 1 = one of them was lost.

    Raises StartError for a secret that is none. A signal ends those that have not joined yet: who
    stops the others stops rank 0 first, which drains.
    """
    machines.secret()
    shape = (machines.host, machines.port, machines.secret_file, machines.count, size)
    children = [
        subprocess.Popen(
            program("joining", os.getpid(), *shape, rank),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in machines.ranks(size)
    ]

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    return _wait(children)


def _wait(children: list[subprocess.Popen[bytes]]) -> int:
    """Until one ends, and the others with it; 0 where all were dismissed."""
    pid, status = os.wait()
    lost = os.waitstatus_to_exitcode(status) != 0
    for child in children:
        if child.pid == pid:
            continue
        if lost:
            child.kill()
        try:
            lost |= child.wait(_END_SECONDS) != 0
        except subprocess.TimeoutExpired:
            child.kill()
            lost = True
    return int(lost)


def main() -> None:
    """Join, then follow until rank 0 is done or gone."""
    parent, host, port, secret, count, size, rank = sys.argv[1:]
    die_with(int(parent))
    machines = Machines(int(count), 0, host, int(port), secret_file=Path(secret))
    try:
        link = join(machines, machines.secret(), int(rank), int(size))
    except StartError as error:
        sys.exit(f"tensor_parallel: rank {rank} of {size}: {error}")
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with(link)
    os._exit(follow(link, int(rank)))


if __name__ == "__main__":
    main()
